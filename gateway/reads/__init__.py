"""Lists: paging, filters, cached recipients."""

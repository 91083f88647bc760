"""Bank accounts and government ids by country (current interface, sections 2.4 and 2.6).

Transcripts show what becomes of a valid account, and one refusal of each kind.
"""

from __future__ import annotations

import pytest

from mappings.banking import validate_bank_account, validate_government_id

ACCOUNTS = {
    "US 1234567 routing=110000000": "",
    "US 1234567": "routing is required.",
    "US - routing=110000000": "accountNum is required.",
    "AU 1234567 routing=062000": "",
    "AU 1234567 branchNum=062-000": "",
    "AU 1234567": "branchNum is required.",
    "AU 1234567 routing=06200": "routing must be a BSB of 6 digits.",
    "AU 1234567 routing=062000 branchNum=063000": "branchNum and routing name different branches.",
    "GB 12345678 branchNum=200000": "",
    "GB 12345678": "branchNum is required.",
    "NZ 1234567 branchNum=010902": "",
    "NZ 1234567 branchNum=01090": "branchNum must be a branch number of 6 digits.",
    "IN 1234567 branchNum=HDFC0001234": "",
    "IN 1234567 branchNum=12345678901": "branchNum must be an IFSC of 11 characters.",
    "CA 1234567 institution=123 branchNum=12345": "",
    "CA 1234567": "branchNum is required. institution is required.",
    "CA 1234567 institution=1 branchNum=123456": "branchNum must be a transit number of 5 digits. "
    "institution must be an institution code of 3 digits.",
    "DE - iban=DE89370400440532013000": "",
    "DE 0532013000": "iban is required.",
    "DE - iban=DE00370400440532013000": "iban is not a valid IBAN.",
    "DE - iban=DE89370400440532013000 swiftBic=COBA": "swiftBic must be a BIC of 8 or 11 characters.",
    "MX 012180001234567891": "",
    "MX DE89-3704-0044-0532-0130-00": "accountNum must not hold an IBAN; send it as iban.",
    "MX IBAN:DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000": "accountNum must not hold an IBAN; send it as iban.",
    "MX \u00a0DE89370400440532013000": "accountNum must not hold an IBAN; send it as iban.",
}
"""Country, account number (- for none) and other fields, and what is wrong with them."""


@pytest.mark.parametrize(("account", "messages"), ACCOUNTS.items(), ids=str)
def test_account_has_the_numbers_of_its_country(account: str, messages: str) -> None:
    country, number, *others = account.split(" ")
    bank = {"country": country, **dict(field.split("=") for field in others)}
    if number != "-":
        bank["accountNum"] = number
    assert " ".join(problem.message for problem in validate_bank_account(bank, "")) == messages


IDS = {
    "AR individual": ("a CUIT of 11 digits", "20123456786", "2012345678"),
    "AR business": ("a CUIT of 11 digits", "30-12345678-1", "3012345678"),
    "AZ individual": ("a TIN of 10 digits", "1234567890", "123456789"),
    "BR individual": ("a CPF of 11 digits", "123.456.789-09", "12345678000195"),
    "BR business": ("a CNPJ of 14 digits", "12.345.678/0001-95", "12345678901"),
    "CL individual": ("a RUT of 9 characters", "12.345.678-K", "K23456785"),
    "CO individual": ("a NIT of 10 digits", "1234567890", "12345678901"),
    "CR individual": ("a Cedula Juridica of 9 to 12 digits", "3101234567", "12345678"),
    "GT individual": ("a NIT of 8 to 12 digits", "12345678", "1234567"),
    "KZ individual": ("an IIN of 12 digits", "123456789012", "12345678901"),
    "PY individual": ("a government id of 6 to 11 digits", "123456", "12345"),
}
"""The rule of a country and type of recipient, with a valid and an invalid id."""


@pytest.mark.parametrize(("key", "row"), IDS.items(), ids=str)
def test_government_id_has_the_form_of_its_country(key: str, row: tuple[str, str, str]) -> None:
    country, recipient_type = key.split()
    rule, valid, invalid = row

    def list_messages(government_id: str | None) -> list[str]:
        bank = {"country": country, "governmentId": government_id}
        return [problem.message for problem in validate_government_id(bank, recipient_type, "")]

    assert list_messages(valid) == []
    assert list_messages(invalid) == [f"governmentId must be {rule}."]
    assert list_messages(None) == ["governmentId is required."]


@pytest.mark.parametrize(
    ("country", "recipient_type"),
    [("US", "individual"), ("CO", "business"), ("DE", "individual")],
)
def test_government_id_is_optional_elsewhere(country: str, recipient_type: str) -> None:
    assert not list(validate_government_id({"country": country}, recipient_type, ""))

-- The translation that nginx.conf has made; see fastapi_gateway.py for what it leaves out.
local cjson = require 'cjson.safe'
local ffi = require 'ffi'

local null = cjson.null
local KEYS = { ['bench-api-key'] = { 'BENCHACCESSKEY', 'bench-secret' } }
local CURRENCIES = { USD = 'US Dollar', EUR = 'Euro' }

-- ngx_http_lua_module has HMAC by SHA-1 only; nginx itself is linked with OpenSSL.
ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *HMAC(const void *evp_md, const void *key, int key_len, const unsigned char *d, size_t n,
                    unsigned char *md, unsigned int *md_len);
]]
local digest, length = ffi.new 'unsigned char[32]', ffi.new 'unsigned int[1]'

local function signature (secret, text)
  ffi.C.HMAC(ffi.C.EVP_sha256(), secret, #secret, text, #text, digest, length)
  return (ffi.string(digest, 32):gsub('.', function (c) return ('%02x'):format(c:byte()) end))
end

local METHODS = { GET = ngx.HTTP_GET, POST = ngx.HTTP_POST, DELETE = ngx.HTTP_DELETE }

local function failure (status, given)
  error({ status = status, given = given })
end

local function pair_of ()
  return KEYS[ngx.var.http_x_api_key] or failure(403)
end

local function call (pair, method, path, body, query)
  local text = body and cjson.encode(body) or ''
  local stamp = tostring(ngx.time())
  local signed = signature(pair[2], table.concat { stamp, '\n', method, '\n', path, '\n', text, '\n' })
  local answer = ngx.location.capture('/service', {
    method = METHODS[method],
    body = text,
    vars = {
      signed = 'svcsign ' .. pair[1] .. ':' .. signed,
      stamp = stamp,
      target = query and path .. '?' .. ngx.encode_args(query) or path,
    },
  })
  local given = cjson.decode(answer.body)
  if answer.status ~= 200 or answer.truncated or not (given and given.ok) then
    failure(answer.status == 400 and 406 or answer.status, given)
  end
  return given
end

local function some (value)
  if value == nil or value == null then return nil end
  return value
end

local function fields (into, from, names)
  for _, name in ipairs(names) do
    local value = from[name]
    into[name] = value == nil and null or value
  end
  return into
end

local function government_id (recipient, country)
  for _, one in ipairs(some(recipient.governmentIds) or {}) do
    if one.country == country then return one.value end
  end
  return null
end

local function masked (number)
  if not some(number) or number:find('*', 1, true) then return some(number) or null end
  return ('*'):rep(math.max(#number - 2, 2)) .. number:sub(-2)
end

local BANK = { 'currency', 'country', 'iban', 'swiftBic', 'bankAddress', 'bankCity', 'bankPostalCode' }

local function bank (account, recipient)
  local country, branch = account.country, some(account.branchId) or null
  return fields({
    name = account.accountHolderName,
    accountNum = masked(account.accountNum),
    institution = some(account[country == 'CA' and 'bankId' or 'bankName']) or null,
    branch = branch,
    branchNum = country == 'CA' and branch or null,
    routing = country == 'US' and branch or null,
    bankProvince = some(account.bankRegionCode) or null,
    governmentId = government_id(recipient, country),
  }, account, BANK)
end

local function payout (recipient)
  local accounts = some(recipient.accounts) or {}
  if #accounts == 0 then return { method = null } end
  local primary = accounts[#accounts]
  for _, one in ipairs(accounts) do
    if one.primary == true then primary = one break end
  end
  local code = primary.currency
  local name = { code = code, name = CURRENCIES[code] or code }
  local method = primary.type == 'bank-transfer' and 'bank' or 'wallet'
  local shown = {}
  for _, account in ipairs(accounts) do
    if account.type == 'wallet' then
      shown.wallet = { address = account.emailAddress }
    else
      shown.bank = bank(account, recipient)
    end
  end
  return {
    autoswitch = { limit = 1000, active = false },
    holdup = { limit = 1000, active = false },
    primary = { method = method, currency = { code = name.code, name = name.name, currency = name } },
    method = method,
    methodDisplay = method == 'bank' and 'Bank Transfer' or 'Wallet',
    accounts = shown,
  }
end

local SAME = { 'id', 'referenceId', 'email', 'name', 'firstName', 'lastName', 'type', 'status',
  'complianceStatus', 'compliance', 'avatarUrl', 'language', 'dob', 'passport', 'address',
  'payoutMethod', 'primaryCurrency', 'createdAt', 'updatedAt' }

local function recipient_answer (recipient)
  return fields({
    ssn = some(recipient.ssn) or government_id(recipient, 'US'),
    payout = payout(recipient),
  }, recipient, SAME)
end

local function body_of ()
  ngx.req.read_body()
  return cjson.decode(ngx.req.get_body_data()) or failure(400)
end

local function read_recipient (id)
  local given = call(pair_of(), 'GET', '/v1/recipients/' .. id)
  return { ok = true, recipient = recipient_answer(given.recipient) }
end

local function list_recipients ()
  local asked = ngx.req.get_uri_args()
  local given = call(pair_of(), 'GET', '/v1/recipients', nil, {
    page = asked.page or 1, pageSize = asked.pageSize or 10, orderBy = 'createdAt', sortBy = 'desc',
  })
  local rows = {}
  for _, one in ipairs(given.recipients) do
    if one.status ~= 'archived' then rows[#rows + 1] = recipient_answer(one) end
  end
  return { ok = true, recipients = rows, meta = given.meta }
end

local function create_payout_method (id)
  local pair, body, path = pair_of(), body_of(), '/v1/recipients/' .. id
  local recipient = call(pair, 'GET', path).recipient
  local sent = body.accounts.bank
  local account = call(pair, 'POST', path .. '/accounts', {
    type = 'bank-transfer',
    country = sent.country,
    currency = some(sent.currency) or body.primary.currency,
    accountHolderName = some(sent.name) or recipient.name,
    accountNum = sent.accountNum,
    branchId = sent.routing,
    primary = true,
  }).account
  for _, one in ipairs(recipient.accounts) do
    call(pair, 'DELETE', path .. '/accounts/' .. one.recipientAccountId)
  end
  recipient.accounts = { account }
  local answer = payout(recipient)
  answer.ok = true
  return answer
end

local BATCH = { 'id', 'status', 'currency', 'description', 'sentAt', 'completedAt', 'createdAt',
  'updatedAt' }

local function create_batch ()
  local body = body_of()
  local payments = {}
  for number, one in ipairs(body.payments) do
    payments[number] = {
      recipient = { id = one.recipient.id },
      amount = one.sourceAmount,
      currency = body.sourceCurrency,
      memo = one.memo,
    }
  end
  local sent = { currency = body.sourceCurrency, description = body.description, payments = payments }
  local batch = call(pair_of(), 'POST', '/v1/batches', sent).batch
  local sum = 0
  for _, one in ipairs(batch.payments) do
    sum = sum + tonumber((one.sourceAmount:gsub('%.', '')))
  end
  return {
    ok = true,
    batch = fields({
      amount = ('%d.%02d'):format(math.floor(sum / 100), sum % 100),
      totalPayments = #batch.payments,
    }, batch, BATCH),
  }
end

local function answered ()
  local method, path = ngx.req.get_method(), ngx.var.uri
  local id = path:match('^/v1/recipients/([%w-]+)$')
  if id and method == 'GET' then return read_recipient(id) end
  id = path:match('^/v1/recipients/([%w-]+)/payout%-methods$')
  if id and method == 'POST' then return create_payout_method(id) end
  if path == '/v1/recipients' and method == 'GET' then return list_recipients() end
  if path == '/v1/batches' and method == 'POST' then return create_batch() end
  failure(404)
end

local function answer ()
  local done, given = pcall(answered)
  if not done then
    if type(given) ~= 'table' then error(given, 0) end
    ngx.status = given.status
    given = { ok = false, errors = given.given and given.given.errors or {} }
  end
  local text = cjson.encode(given)
  ngx.header['Content-Length'] = #text
  ngx.print(text)
end

return { answer = answer }

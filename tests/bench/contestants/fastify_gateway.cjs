// The same translation in Node: fastify in front, undici behind. What fastapi_gateway.py says of
// itself holds here too: no ledger, no limits, no checks of amounts, and fastify's default of no log.
'use strict'

const { createHmac } = require('node:crypto')
const { fastify } = require('fastify')
const { Pool } = require('undici')

const KEYS = { 'bench-api-key': ['BENCHACCESSKEY', 'bench-secret'] }
const CURRENCIES = { USD: 'US Dollar', EUR: 'Euro' }
const service = new Pool(process.env.SERVICE, { connections: 100 })
const app = fastify({ bodyLimit: 64 * 1024 * 1024 })

function failure (status, given) {
  return Object.assign(new Error('refused'), { statusCode: status, given })
}

function pairOf (request) {
  const pair = KEYS[request.headers['x-api-key']]
  if (!pair) throw failure(403)
  return pair
}

async function call (pair, method, path, body, query) {
  const text = body === undefined ? '' : JSON.stringify(body)
  const stamp = String(Math.floor(Date.now() / 1000))
  const signature = createHmac('sha256', pair[1])
    .update(`${stamp}\n${method}\n${path}\n`).update(text).update('\n').digest('hex')
  const headers = { authorization: `svcsign ${pair[0]}:${signature}`, 'x-svc-timestamp': stamp }
  if (text) headers['content-type'] = 'application/json'
  const answer = await service.request({ method, path, query, headers, body: text || undefined })
  const given = await answer.body.json()
  if (answer.statusCode !== 200 || !given.ok) {
    throw failure(answer.statusCode === 400 ? 406 : answer.statusCode, given)
  }
  return given
}

function fields (from, names) {
  return Object.fromEntries(names.map(name => [name, from[name] ?? null]))
}

const governmentId = (recipient, country) =>
  (recipient.governmentIds || []).find(one => one.country === country)?.value ?? null

const BANK = ['currency', 'country', 'iban', 'swiftBic', 'bankAddress', 'bankCity', 'bankPostalCode']

function masked (number) {
  if (!number || number.includes('*')) return number ?? null
  return '*'.repeat(Math.max(number.length - 2, 2)) + number.slice(-2)
}

function bank (account, recipient) {
  const { country, branchId = null } = account
  return {
    ...fields(account, BANK),
    name: account.accountHolderName,
    accountNum: masked(account.accountNum),
    institution: account[country === 'CA' ? 'bankId' : 'bankName'] ?? null,
    branch: branchId,
    branchNum: country === 'CA' ? branchId : null,
    routing: country === 'US' ? branchId : null,
    bankProvince: account.bankRegionCode ?? null,
    governmentId: governmentId(recipient, country)
  }
}

function payout (recipient) {
  const accounts = recipient.accounts || []
  if (!accounts.length) return { method: null }
  const primary = accounts.find(one => one.primary) || accounts.at(-1)
  const name = { code: primary.currency, name: CURRENCIES[primary.currency] || primary.currency }
  const method = primary.type === 'bank-transfer' ? 'bank' : 'wallet'
  const shown = {}
  for (const account of accounts) {
    if (account.type === 'wallet') shown.wallet = { address: account.emailAddress }
    else shown.bank = bank(account, recipient)
  }
  return {
    autoswitch: { limit: 1000, active: false },
    holdup: { limit: 1000, active: false },
    primary: { method, currency: { ...name, currency: name } },
    method,
    methodDisplay: method === 'bank' ? 'Bank Transfer' : 'Wallet',
    accounts: shown
  }
}

const SAME = ['id', 'referenceId', 'email', 'name', 'firstName', 'lastName', 'type', 'status',
  'complianceStatus', 'compliance', 'avatarUrl', 'language', 'dob', 'passport']

function recipientAnswer (recipient) {
  return {
    ...fields(recipient, SAME),
    ssn: recipient.ssn || governmentId(recipient, 'US'),
    address: recipient.address ?? null,
    payout: payout(recipient),
    ...fields(recipient, ['payoutMethod', 'primaryCurrency', 'createdAt', 'updatedAt'])
  }
}

app.get('/v1/recipients/:id', async request => {
  const given = await call(pairOf(request), 'GET', `/v1/recipients/${request.params.id}`)
  return { ok: true, recipient: recipientAnswer(given.recipient) }
})

app.get('/v1/recipients', async request => {
  const { page = 1, pageSize = 10 } = request.query
  const query = { page, pageSize, orderBy: 'createdAt', sortBy: 'desc' }
  const given = await call(pairOf(request), 'GET', '/v1/recipients', undefined, query)
  const rows = given.recipients.filter(one => one.status !== 'archived').map(recipientAnswer)
  return { ok: true, recipients: rows, meta: given.meta }
})

app.post('/v1/recipients/:id/payout-methods', async request => {
  const pair = pairOf(request)
  const { body } = request
  const path = `/v1/recipients/${request.params.id}`
  const { recipient } = await call(pair, 'GET', path)
  const sent = body.accounts.bank
  const { account } = await call(pair, 'POST', `${path}/accounts`, {
    type: 'bank-transfer',
    country: sent.country,
    currency: sent.currency || body.primary.currency,
    accountHolderName: sent.name || recipient.name,
    accountNum: sent.accountNum,
    branchId: sent.routing,
    primary: true
  })
  for (const one of recipient.accounts) {
    await call(pair, 'DELETE', `${path}/accounts/${one.recipientAccountId}`)
  }
  return { ok: true, ...payout({ ...recipient, accounts: [account] }) }
})

const BATCH = ['id', 'status', 'amount', 'totalPayments', 'currency', 'description', 'sentAt',
  'completedAt', 'createdAt', 'updatedAt']

app.post('/v1/batches', async request => {
  const { body } = request
  const currency = body.sourceCurrency
  const payments = body.payments.map(one => ({
    recipient: { id: one.recipient.id }, amount: one.sourceAmount, currency, memo: one.memo
  }))
  const sent = { currency, description: body.description, payments }
  const { batch } = await call(pairOf(request), 'POST', '/v1/batches', sent)
  const sum = batch.payments.reduce((all, one) => all + BigInt(one.sourceAmount.replace('.', '')), 0n)
  const shown = fields(batch, BATCH)
  shown.amount = `${sum / 100n}.${String(sum % 100n).padStart(2, '0')}`
  shown.totalPayments = batch.payments.length
  return { ok: true, batch: shown }
})

app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) })

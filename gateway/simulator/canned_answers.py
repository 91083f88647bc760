"""Operations that no payout needs, with one answer each: sub-merchants, subscriptions, offline payments.

Nothing is stored or checked (current interface, sections 2.7, 4.4 and 4.5).
"""

from gateway.simulator.json_codec import JsonObject

SUBSCRIPTION: JsonObject = {
    "action": "created",
    "model": "recipient",
    "target": "https://hooks.example.com/payouts",
}
NEW_MERCHANT: JsonObject = {
    "id": 1001,
    "accessKey": "SUBMERCHANTACCESSKEY",
    "secretKey": "submerchant-secret-key",
}
FUNDING_ACCOUNT: JsonObject = {
    "accountAddress": "1 Funding Street",
    "accountCity": "New York",
    "accountCountryCode": "US",
    "accountCurrency": "USD",
    "accountName": "Payout Service Client Funds",
    "accountNum": "0000001001",
    "accountPostalCode": "10001",
    "accountRegion": "NY",
    "bankAddress": "2 Funding Street",
    "bankCity": "New York",
    "bankCountry": "United States",
    "bankCountryCode": "US",
    "bankName": "Harbour Bank",
    "bankPostalCode": "10001",
    "bankRegion": "NY",
    "institution": "021",
    "referenceMemo": "demo",
    "routingNumber": "021000021",
}
MERCHANT_BANK_ACCOUNT: JsonObject = {
    "currency": "CAD",
    "accountName": "Demo",
    "fileLink": None,
    "completed": False,
    "iban": None,
    "accountNum": "****47",
    "swiftBic": None,
    "branchId": "00012",
    "bankId": "003",
    "bankName": "Harbour Bank",
    "bankAddress": None,
    "bankCity": None,
    "bankPostalCode": None,
    "bankRegion": None,
    "country": "CA",
    "enabled": True,
}
CANNED_ANSWERS: tuple[tuple[str, str, JsonObject], ...] = (
    ("GET", "/v1/recipients/{id}/offlinePayments", {"offlinePayments": []}),
    ("POST", "/v1/profile/submerchant", {"merchant": NEW_MERCHANT}),
    ("POST", "/v1/onboarding/update", {}),
    ("GET", "/v1/balances/info", {"info": [FUNDING_ACCOUNT]}),
    ("POST", "/v1/profile/sandbox", {"merchant": NEW_MERCHANT}),
    ("DELETE", "/v1/profile/sandbox", {}),
    ("POST", "/v1/direct-debit/bank-account/", {"merchantBankAccount": MERCHANT_BANK_ACCOUNT}),
    ("POST", "/v1/iframe/config", {}),
    ("POST", "/v1/subscriptions", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("GET", "/v1/subscriptions", {"subscriptions": [{"id": "1", **SUBSCRIPTION}]}),
    ("GET", "/v1/subscriptions/{id}", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("PATCH", "/v1/subscriptions/{id}", SUBSCRIPTION),
    ("DELETE", "/v1/subscriptions/{id}", {}),
)

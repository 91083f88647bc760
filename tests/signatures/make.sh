#!/bin/sh
# Makes the vectors again, with nothing but sh, sed and openssl, so that the signature is not
# tested against itself:   sh tests/signatures/make.sh tests/signatures
set -eu
into=${1:?usage: make.sh DIRECTORY}

quoted() { printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g'; }

vector() { # name secret timestamp method target body
    signature=$(printf '%s\n%s\n%s\n%s\n' "$3" "$4" "$5" "$6" |
        openssl dgst -sha256 -hmac "$2" | sed 's/^.*= *//')
    printf '{\n  "secret_key": "%s",\n  "timestamp": %s,\n  "method": "%s",\n  "target": "%s",\n  "body": "%s",\n  "signature": "%s"\n}\n' \
        "$(quoted "$2")" "$3" "$4" "$(quoted "$5")" "$(quoted "$6")" "$signature" > "$into/$1.json"
}

vector read-without-query 'not-a-secret' 1700000000 GET /v1/recipients/R-91XNJ3R4BNVRKX ''
vector read-over-path 'not-a-secret' 1700000000 GET /v1/recipients ''
vector read-over-path-and-query 'not-a-secret' 1700000000 GET \
    '/v1/recipients?search=a%40b.example&page=2&pageSize=10' ''
vector write-with-body 'not-a-secret' 1700000001 POST /v1/batches \
    '{"sourceCurrency":"USD","description":"with \"quotes\" and a \\ in it"}'
vector write-without-body 'not-a-secret' 1700000002 POST /v1/batches/B-1/generate-quote ''
vector delete 'not-a-secret' 1700000003 DELETE /v1/recipients/R-1 ''
vector body-not-ascii 'not-a-secret' 1700000004 PATCH /v1/recipients/R-1 \
    '{"firstName":"Zoë","lastName":"王","memo":"😀"}'
vector secret-not-ascii 'schlüssel geheim' 9999999999 GET /v1/profile ''
vector target-percent-encoded 'not-a-secret' 1700000005 GET '/v1/recipients/a%2Fb%20c' ''

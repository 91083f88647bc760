#!/bin/sh
# Makes sure that there is a Chromium for the tests that look at pages as people see them.
#
# One that is installed is taken as it is (CHROMIUM names another). Else Debian's package is
# installed, where we are root or may be without a password; else Playwright fetches a build of its
# own. Where none of this can be had the tests of pages are skipped and say so, but never with CI set.
set -u
playwright=${1:-playwright}

found() {
    for name in "${CHROMIUM:-chromium}" chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" >/dev/null 2>&1 && return 0
    done
    return 1
}

by_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -qq </dev/null &&
        $as_root apt-get install -y -qq --no-install-recommends chromium </dev/null
}

found && exit 0
echo "No Chromium for the tests of pages; installing one."
by_apt >/dev/null 2>&1 && found && exit 0
timeout 300 "$playwright" install chromium >/dev/null 2>&1 && exit 0

echo "No Chromium could be installed: not with apt-get (are you root?), not with playwright." >&2
echo "Install one, or name one in CHROMIUM. Until then the tests of pages cannot run." >&2
[ -z "${CI:-}" ]

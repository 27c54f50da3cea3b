# What scripts of real engines share: source this where `say` and `fail` are.

# until_true WHAT COMMAND...: waits for it, up to 60 s.
until_true() {
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "never happened: $what"
        sleep 0.1
    done
    say "ok: $what"
}
refuses() { ! "$@"; }
# field NAME: its first value in JSON that has no other field of that name before it.
field() { grep -o "\"$1\": *[^,}]*" | head -n 1 | sed 's/^[^:]*: *//; s/^"//; s/"$//'; }

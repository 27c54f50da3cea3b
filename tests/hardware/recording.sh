# What static partitions answered on a GPU (`mps-manager record`), checked against parser and simulated host. Sourced by run.sh.

# replay FILE PROFILE: every reply is understood, and the simulated host of that profile, if one is named, gives the same.
replay() {
    local file=$1 profile=$2
    check_that "every reply in ${file##*/} is understood" clean "$binary" record "$file" --check
    if [ -n "$profile" ]; then
        check_that "$profile gives the replies in ${file##*/}" clean "$binary" record "$file" --check --sim "$profile"
    else
        say "no --profile: ${file##*/} is not compared with a simulated host"
    fi
}

# Records this GPU where it has static partitions, and takes what others recorded.
recordings() {
    local file=$WORK/recording.json refusal=0
    if [ "$(mps_binary_version)" -ge 13010 ]; then
        check_that "static partitions are recorded on this GPU" clean timeout 120 "$binary" record "$file" --yes
        replay "$file" ''
    else
        clean timeout 60 "$binary" record "$file" --yes >"$LOGS/record.out" 2>"$LOGS/record.err" || refusal=$?
        check "record refuses an MPS without static partitions, and names the version that has them" "2 yes" \
            "$refusal $(grep -q '13\.1' "$LOGS/record.err" && echo yes || echo no)"
        check "and writes no file" no "$([ -e "$file" ] && echo yes || echo no)"
    fi
    if [ -n "$recording" ]; then replay "$recording" "$profile"; fi
}

# What scripts run of the documentation: source this.

# example PAGE NAME [KIND]: the fenced block after the line <!-- KIND: NAME --> of a page; KIND is `example` where it is left out.
example() {
    local mark="<!-- ${3:-example}: $2 -->"
    awk -v mark="$mark" '
        $0 == mark                { marked = 1; next }
        marked && !open && /^```/ { open = 1; next }
        open && /^```/            { found = 1; exit }
        open                      { print }
        END                       { exit !found }
    ' "$1" && return
    echo "$1 has no block $mark" >&2
    return 1
}

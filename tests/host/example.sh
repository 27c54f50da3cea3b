# What scripts run of the documentation: source this.

# example PAGE NAME: the fenced block after the line <!-- example: NAME --> of a page.
example() {
    awk -v mark="<!-- example: $2 -->" '
        $0 == mark                { marked = 1; next }
        marked && !open && /^```/ { open = 1; next }
        open && /^```/            { found = 1; exit }
        open                      { print }
        END                       { exit !found }
    ' "$1" && return
    echo "$1 has no block <!-- example: $2 -->" >&2
    return 1
}

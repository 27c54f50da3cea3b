# Sourced: whether a list of licences has those that it must not lack, of crates, of what crates compile, and of files of the console.

# names_licences TEXT
names_licences() {
    local name
    for name in '  tokio 1\.' '  libsqlite3-sys 0\.' '^SQLite$' '  ring 0\.' '^htmx 4\.' '^uPlot 1\.' '^The Rust standard library$' \
        '^Apache License 2.0 (Apache-2.0), of$' '^MIT License (MIT), of$' '^Copyright (c) Tokio Contributors$'; do
        grep -q -- "$name" <<<"$1" || { echo "the list of licences lacks $name" >&2; return 1; }
    done
}

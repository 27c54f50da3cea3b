# What scripts need of the registries: source this. All of it stays below the build directory.

# python_with REQUIREMENTS: a virtual environment that has exactly these; prints its folder.
python_with() {
    local wanted digest
    digest=$(sha256sum <"$1" | cut -c1-16)
    wanted=${CARGO_TARGET_DIR:-target}/python/$digest
    if [ ! -e "$wanted/complete" ]; then
        rm -rf -- "$wanted"
        python3 -m venv "$wanted"
        "$wanted/bin/pip" install -q --require-hashes -r "$1" >&2
        touch "$wanted/complete"
    fi
    realpath "$wanted"
}

# node_with FOLDER: a folder that has what the package-lock.json of this one says; prints it.
node_with() {
    local name=${1##*/} folder
    folder=${CARGO_TARGET_DIR:-target}/node/$name
    mkdir -p "$folder"
    cp -- "$1"/{package.json,package-lock.json,.npmrc} "$folder/"
    (cd "$folder" && npm ci --silent --ignore-scripts >&2)
    realpath "$folder"
}

# typescript_with: what tests/clients/typescript needs, with the settings of tsc; prints the folder.
typescript_with() {
    local folder
    folder=$(node_with tests/clients/typescript)
    rm -rf -- "$folder/built" "$folder"/*.ts
    cp -- tests/clients/typescript/tsconfig.json "$folder/"
    echo "$folder"
}

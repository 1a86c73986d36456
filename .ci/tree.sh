# For the scripts of this directory: a copy of the tree as a clone would have it, the commands of README, and Pythons.

# copy_tree ROOT TARGET: tracked and new files, nothing that .gitignore hides, into TARGET/tree; an environment of an
# earlier copy stays. Beside it the real dumps that some tests read through ../shared; without them those tests skip.
copy_tree() {
    mkdir -p "$2/tree"
    find "$2/tree" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    git -C "$1" ls-files -z --cached --others --exclude-standard |
        (cd "$1" && while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done) |
        tar -C "$1" --null --files-from=- -cf - | tar -C "$2/tree" -xf -
    [ ! -d "$1/../shared" ] || ln -sfn "$(cd "$1/../shared" && pwd)" "$2/shared"
}

# readme_command END: the line of README that begins by making an environment and has END in it.
readme_command() {
    grep -E "^python3? -m venv .*$1" README.md || {
        echo "README.md has no line 'python3 -m venv ... $1 ...'" >&2
        return 1
    }
}

# find_python VERSION: the path of one that starts (a shim of pyenv need not).
find_python() {
    local candidate
    for candidate in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        "$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && return
    done
    echo "python$1 is neither in PATH nor in pyenv" >&2
    return 1
}

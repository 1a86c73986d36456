#!/bin/sh
# Show the gate green, a baseline accepted, and a pull request refused, in a copy of this directory:
#     sh try.sh DIRECTORY
# Runs with the python that is first on PATH, which needs acc_pytest and pytest-xdist.
set -eu

[ $# -eq 1 ] || { echo "usage: sh try.sh DIRECTORY (a new one)" >&2; exit 2; }
mkdir "$1"
cp -R "$(dirname "$0")/." "$1"
cd "$1"
unset GITHUB_ACTIONS GITHUB_STEP_SUMMARY

pipeline() {
    echo "== $1"
    rm -rf acc
    sh accuracy/gate.sh dump
    for shard in 1 2; do
        sh accuracy/gate.sh compare "$shard/2" >"shard-$shard.log" 2>&1 || echo "shard $shard is red (shard-$shard.log)"
    done
    sh accuracy/gate.sh verdict
}

pipeline "main: the port as it is"
echo "== accept: a baseline of these errors"
sh accuracy/gate.sh accept >accept.log
patch -p1 <accuracy/broken.patch
if pipeline "a pull request: accuracy/broken.patch"; then
    echo "the gate let a broken port pass" >&2
    exit 1
fi
echo "== the gate was green, then red. Open $(pwd)/acc/accuracy.html"

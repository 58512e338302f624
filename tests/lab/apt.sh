# shellcheck shell=bash
# Owns how a suite's packages are had without touching this machine's own apt: sourced
# by what needs packages of another Debian. The caller has $work, a folder of its own,
# and die STATUS WORDS.

readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror is the one that this machine's apt uses.
mirror_of() {
    local uri release main='' security=''
    while read -r uri release; do
        case $release in
            *-security) security=${security:-$uri} ;;
            *) main=${main:-$uri} ;;
        esac
    done < <(apt-get indextargets --format "\$(REPO_URI) \$(RELEASE)" 'Identifier: Packages')
    [[ $1 == *-security && -n $security ]] && main=$security
    [[ -n $main ]] || die 1 "this machine's apt has no package source to take a mirror from"
    printf '%s\n' "$main"
}

# use_suite SUITE [ARCHITECTURE]: from here on apt knows the packages of that suite
# only, and takes none for installed; its lists, cache and status are in
# $work/apt-SUITE[-ARCHITECTURE]. How this machine reaches its mirror (proxy, date
# checks) is kept, its hooks are not.
use_suite() {
    # shellcheck disable=SC2154 # the caller has it
    local apt=$work/apt-$1${2:+-$2} architecture=${2:-amd64}
    [[ -r $keyring ]] || die 1 "no $keyring to check signatures with: install debian-archive-keyring"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    printf 'deb [arch=%s signed-by=%s] %s %s main\n' \
        "$architecture" "$keyring" "$(mirror_of "$1")" "$1" >"$apt/sources.list"
    {
        apt-config dump Acquire | grep -v -e '::IndexTargets' -e '::Languages' -e ' "";$' || true
        cat <<CONF
Acquire::AllowInsecureRepositories "0";
Acquire::AllowWeakRepositories "0";
Acquire::AllowDowngradeToInsecureRepositories "0";
Acquire::Languages "none";
Acquire::PDiffs "0";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Get::AllowUnauthenticated "0";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
CONF
    } >"$apt/apt.conf"
    export APT_CONFIG=$apt/apt.conf
    apt-get -qq update >&2 || die 1 "cannot read the index of $1"
}

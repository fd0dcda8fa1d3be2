# Builds Kubernetes from Debian's source package into $BIN, once. Sourced by ../cluster, which sets $HOME_DIR and $BIN.
# About five minutes of two cores, 1.4 GB of memory and 2.2 GB of disk while it runs; 400 MB stay.

VERSION_PACKAGE=k8s.io/kubernetes/vendor/k8s.io/component-base/version
PARTS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"

build() {
    [ -e "$BIN/.complete" ] && return
    rm -rf "$BIN" "$HOME_DIR/build"
    mkdir -p "$BIN" "$HOME_DIR/build"
    (
        cd "$HOME_DIR/build"
        install_packages
        fetch_source
        compile
    )
    rm -rf "$HOME_DIR/build"
    touch "$BIN/.complete"
}

install_packages() {
    echo "cluster: installing packages" >&2
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        docker.io golang-go conntrack socat iptables iproute2 openssl procps util-linux
    # Only unpacked, not installed: etcd would start a service, and another kubectl may be there already.
    apt-get download -q etcd-server kubernetes-client containernetworking-plugins golang-github-modern-go-reflect2-dev
    for package in *.deb; do dpkg -x "$package" packages; done
    cp packages/usr/bin/etcd packages/usr/bin/kubectl "$BIN/"
    cp -r packages/usr/lib/cni "$BIN/cni"
}

# A list of sources of our own, derived from the machine's: `deb-src` is seldom in those, which stay as they are.
fetch_source() {
    echo "cluster: fetching the source package" >&2
    mkdir -p apt/parts apt/lists
    cp /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list apt/parts/ 2>/dev/null || true
    [ ! -e /etc/apt/sources.list ] || cp /etc/apt/sources.list apt/parts/main.list
    sed -i -E 's/^Types:.*/Types: deb-src/; s/^deb +/deb-src /' apt/parts/*
    local apt="apt-get -q -o Dir::Etc::sourcelist=$PWD/apt/none -o Dir::Etc::sourceparts=$PWD/apt/parts"
    apt="$apt -o Dir::State::Lists=$PWD/apt/lists"
    $apt update || true  # a third party's list may have no sources; what matters is checked by the next line
    $apt source --download-only kubernetes
    tar -xzf kubernetes_*.orig.tar.gz
    mkdir -p gopath/src/k8s.io
    mv kubernetes-*/ gopath/src/k8s.io/kubernetes
}

compile() {
    echo "cluster: compiling, which takes some minutes" >&2
    local work=$PWD
    export GO111MODULE=off GOPATH=$work/gopath GOCACHE=$work/cache CGO_ENABLED=0 GOFLAGS=
    go build -ldflags "-s -w" -o "$BIN/pause" "$HERE/pause.go"
    cd gopath/src/k8s.io/kubernetes
    # The reflect2 in the source builds with Go >= 1.18, and makes the API server crash under load: take Debian's own.
    local vendored=vendor/github.com/modern-go/reflect2
    rm -f $vendored/*.go $vendored/*.s
    cp "$work"/packages/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $vendored/
    generate_openapi "$work"
    local parts version
    parts=$(printf './cmd/%s ' $PARTS)
    version=$(basename "$work"/kubernetes_*.orig.tar.gz .orig.tar.gz)
    version=${version##*[_y]} # after "kubernetes_", or in Debian's "1.20.5+really1.20.2" after "really"
    # shellcheck disable=SC2086 # several words each
    go build -ldflags "-s -w -X $VERSION_PACKAGE.gitVersion=v$version -X $VERSION_PACKAGE.gitMajor=${version%%.*}
        -X $VERSION_PACKAGE.gitMinor=$(echo "$version" | cut -d. -f2)" -o "$BIN/" $parts
}

# pkg/generated/openapi is not in the source ("undefined: openapi.GetOpenAPIDefinitions"): it is generated from all
# packages that carry the tag, as the project's own Makefile does, without its need of bash 4 and rsync.
generate_openapi() {
    local tag='+k8s:openapi-gen=' packages
    go build -o "$1/" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$({
        grep -rlF --include='*.go' "$tag" cmd pkg plugin || true
        for staging in staging/src/k8s.io/*; do
            case $(basename "$staging") in
                code-generator | sample-apiserver) ;;
                *) { grep -rlF --include='*.go' "$tag" "$staging" || true; } | sed 's#^staging/src/#vendor/#' ;;
            esac
        done
    } | grep -v -e /test/ -e _test.go -e zz_generated | xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#')
    "$1/openapi-gen" --logtostderr -i "$(echo $packages | tr ' ' ,)" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$1/violations"
}

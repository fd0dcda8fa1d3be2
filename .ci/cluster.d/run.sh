# Starts and stops the cluster. Sourced by ../cluster.

LOADED="envweave-core envweave-lineworld envweave-codefix envweave-echo envweave-codeact envweave-coding envweave-repl"

ours() { "$BIN/kubectl" --kubeconfig "$STATE/admin.kubeconfig" "$@"; }
inner_docker() { docker -H "unix://$STATE/docker.sock" "$@"; }

# By its name too: after a restart of the machine another process may have the number.
is_running() { [ -e "$STATE/pid" ] && [ "$(cat "/proc/$(cat "$STATE/pid")/comm" 2>/dev/null)" = unshare ]; }

start() {
    if ! is_running; then
        stop
        mkdir -p "$STATE/logs" "$IMAGES"
        make_keys
        make_cgroups
        # The end of unshare is that of its child, which is init in the new namespace of processes, and so of all.
        setsid unshare --net --mount --propagation slave --pid --fork --kill-child --mount-proc \
            bash "$HERE/inside.sh" >"$STATE/logs/inside.log" 2>&1 </dev/null 9>&- &
        echo $! >"$STATE/pid"
        connect
    fi
    wait_for "the API server" 120 api_is_ready
    ours apply -f "$HERE/rights.yaml" >/dev/null
    wait_for "the node" 120 node_is_ready
    load_images
}

api_is_ready() { [ "$(ours get --raw /readyz 2>/dev/null)" = ok ]; }
node_is_ready() { ours wait --for=condition=Ready node/node1 --timeout=1s; }

wait_for() { # what, seconds, command
    local end=$((SECONDS + $2))
    until "$3" >/dev/null 2>&1; do
        is_running || { tail -n 20 "$STATE"/logs/*.log >&2; fail "it has ended; see $STATE/logs"; }
        [ $SECONDS -lt $end ] || { tail -n 20 "$STATE"/logs/*.log >&2; fail "$1 is not ready after $2 s; see $STATE/logs"; }
        sleep 0.5
    done
}

# A pair of interfaces, one of them in the cluster's network namespace: the only way in.
connect() {
    local init
    for _ in $(seq 100); do
        init=$(pgrep -P "$(cat "$STATE/pid")" || true)
        [ -z "$init" ] || break
        sleep 0.1
    done
    [ -n "$init" ] || fail "no namespaces can be made here: $(cat "$STATE/logs/inside.log")"
    ip link add "$LINK" type veth peer name eth0 netns "$init"
    ip addr add "$HOST_IP/24" dev "$LINK"
    ip link set "$LINK" up
}

stop() {
    if is_running; then
        kill -KILL "$(cat "$STATE/pid")"
        while is_running; do sleep 0.1; done
    fi
    ip link delete "$LINK" 2>/dev/null || true
    for _ in $(seq 100); do # the kernel removes the last processes, and then their groups may be removed
        find /sys/fs/cgroup/*/envweave-cluster -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -n "$(ls -d /sys/fs/cgroup/*/envweave-cluster 2>/dev/null)" ] || break
        sleep 0.1
    done
    rm -rf "$STATE"
}

# The root of the kubelet's groups must be there in each hierarchy; a new cpuset is empty unless it is copied.
make_cgroups() {
    local root
    for root in /sys/fs/cgroup/*/; do
        [ "$(stat -fc %T "$root")" = cgroup2fs ] || mkdir -p "$root/envweave-cluster"
    done
    for name in cpuset.cpus cpuset.mems; do
        cat "/sys/fs/cgroup/cpuset/$name" >"/sys/fs/cgroup/cpuset/envweave-cluster/$name"
    done
}

# The images of the machine's engine that the inner one does not have yet, and those of the tests.
load_images() {
    local name id new=
    for name in $LOADED; do
        id=$(docker image inspect --format '{{.Id}}' "$name" 2>/dev/null) || continue
        [ "$(inner_docker image inspect --format '{{.Id}}' "$name" 2>/dev/null)" = "$id" ] || new="$new $name"
    done
    # shellcheck disable=SC2086 # several names
    [ -z "$new" ] || docker save $new | inner_docker load --quiet >/dev/null
    inner_docker image inspect envweave-core >/dev/null 2>&1 || fail "there is no image envweave-core: run make images"
    # They are made from envweave-core, and so anew only when that is.
    case "$new" in *envweave-core*) ;; *) inner_docker image inspect silent:1 >/dev/null 2>&1 && return ;; esac
    image_of_tests crash "print('no server'); raise SystemExit(3)"
    image_of_tests oom "x = b'1' * (1 << 30)"
    image_of_tests silent "import time; time.sleep(600)"
}

image_of_tests() { # name, program
    local container
    container=$(inner_docker create --network none envweave-core)
    inner_docker commit --change "ENTRYPOINT [\"python3\", \"-c\", \"$2\"]" --change 'CMD []' "$container" "$1:1" >/dev/null
    inner_docker rm "$container" >/dev/null
}

make_keys() {
    local pki=$STATE/pki
    mkdir -p "$pki"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=kubernetes \
        -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null
    local names="DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost"
    certificate apiserver /CN=kube-apiserver "$names,IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1"
    certificate kubelet-server /CN=node1 "DNS:node1,IP:$NODE_IP,IP:127.0.0.1"
    certificate apiserver-kubelet-client /O=system:masters/CN=apiserver-kubelet
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$pki/accounts.key" 2>/dev/null
    openssl pkey -in "$pki/accounts.key" -pubout -out "$pki/accounts.pub"
    user admin /O=system:masters/CN=admin
    user controller-manager /CN=system:kube-controller-manager
    user scheduler /CN=system:kube-scheduler
    user proxy /CN=system:kube-proxy
    user kubelet /O=system:nodes/CN=system:node:node1
    user player /CN=player # has the rights of docs/kubernetes.md and no others: see rights.yaml
}

certificate() { # name, subject, other names
    local at=$STATE/pki/$1
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" -keyout "$at.key" -out "$at.csr" 2>/dev/null
    {
        echo "extendedKeyUsage=clientAuth,serverAuth"
        [ -z "${3:-}" ] || echo "subjectAltName=$3"
    } >"$at.ext"
    openssl x509 -req -in "$at.csr" -CA "$STATE/pki/ca.crt" -CAkey "$STATE/pki/ca.key" -CAcreateserial -days 3650 \
        -extfile "$at.ext" -out "$at.crt" 2>/dev/null
}

user() { # name, subject: a certificate, and the kubeconfig that uses it
    certificate "$1" "$2"
    cat >"$STATE/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: here, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: me, user: {client-certificate: $STATE/pki/$1.crt, client-key: $STATE/pki/$1.key}}]
contexts:
- {name: here, context: {cluster: here, user: me}}
- {name: team, context: {cluster: here, user: me, namespace: team}}
YAML
}

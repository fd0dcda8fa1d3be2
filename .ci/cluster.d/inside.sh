# The first process of the cluster's namespaces: starts its parts, and reaps what they leave. Run by run.sh.
set -eu

part() { # name, command...: it is started again whenever it ends, as tests kill the API server
    local name=$1
    shift
    while :; do
        "$@" >>"$STATE/logs/$name.log" 2>&1 || true
        sleep 1
    done &
}

# Folders whose paths are fixed in the kubelet and in the engine (dockershim, device plug-ins, logs of Pods, the
# socket of a containerd that this machine may have): here they are others.
mkdir -p "$STATE/var-lib" "$STATE/var-log" "$STATE/sysctl"
mount --bind "$STATE/var-lib" /var/lib
mount --bind "$STATE/var-log" /var/log
mount -t tmpfs tmpfs /run

# The kubelet sets these, which belong to the whole machine: here it finds files in their places.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    file=$STATE/sysctl/${name//\//.}
    cat "/proc/sys/$name" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done

until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
ip link set lo up
ip addr add "$NODE_IP/24" dev eth0
ip link set eth0 up
ip route add default via "${NODE_IP%.*}.1" # nothing is forwarded there, but the kubelet wants a default route
echo 1 >/proc/sys/net/ipv4/ip_forward

mkdir -p "$STATE/cni" "$STATE/etcd" "$STATE/kubelet"
for file in daemon.json bridge.conflist kubelet.yaml; do
    sed "s#@STATE@#$STATE#g; s#@HERE@#$HERE#g; s#@NODE_IP@#$NODE_IP#g" "$HERE/$file" >"$STATE/$file"
done
mv "$STATE/bridge.conflist" "$STATE/cni/10-bridge.conflist"
echo "nameserver 10.96.0.10" >"$STATE/resolv.conf"

part dockerd dockerd --config-file "$STATE/daemon.json" --host "unix://$STATE/docker.sock" --data-root "$IMAGES" \
    --bridge none --iptables=false --ip-forward=false --ip-masq=false
part etcd "$BIN/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380

pki=$STATE/pki
part apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --secure-port=6443 --bind-address=0.0.0.0 --advertise-address="$NODE_IP" --cert-dir="$STATE/apiserver" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" \
    --kubelet-client-key="$pki/apiserver-kubelet-client.key" --kubelet-certificate-authority="$pki/ca.crt" \
    --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range=10.96.0.0/16 \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/accounts.pub" \
    --service-account-signing-key-file="$pki/accounts.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction

until docker -H "unix://$STATE/docker.sock" info >/dev/null 2>&1; do sleep 0.2; done
docker -H "unix://$STATE/docker.sock" ps -aq | xargs -r docker -H "unix://$STATE/docker.sock" rm -f >/dev/null
tar -C "$BIN" -c pause | docker -H "unix://$STATE/docker.sock" import --change 'ENTRYPOINT ["/pause"]' - pause:local

until "$BIN/kubectl" --kubeconfig "$STATE/admin.kubeconfig" get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
part controller-manager "$BIN/kube-controller-manager" --kubeconfig="$STATE/controller-manager.kubeconfig" \
    --service-account-private-key-file="$pki/accounts.key" --root-ca-file="$pki/ca.crt" --cert-dir="$STATE/controllers" \
    --use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1
part scheduler "$BIN/kube-scheduler" --kubeconfig="$STATE/scheduler.kubeconfig" --cert-dir="$STATE/scheduler" \
    --leader-elect=false --bind-address=127.0.0.1
part kubelet "$BIN/kubelet" --kubeconfig="$STATE/kubelet.kubeconfig" --config="$STATE/kubelet.yaml" \
    --hostname-override=node1 --node-ip="$NODE_IP" --root-dir="$STATE/kubelet" --cert-dir="$STATE/kubelet-keys" \
    --container-runtime=docker --docker-endpoint="unix://$STATE/docker.sock" --pod-infra-container-image=pause:local \
    --network-plugin=cni --cni-bin-dir="$BIN/cni" --cni-conf-dir="$STATE/cni" --cni-cache-dir="$STATE/cni-cache"
part proxy "$BIN/kube-proxy" --kubeconfig="$STATE/proxy.kubeconfig" --proxy-mode=iptables --hostname-override=node1 \
    --cluster-cidr=10.244.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0s \
    --conntrack-tcp-timeout-close-wait=0s

# As init it must not end while they run.
while :; do wait || true; done

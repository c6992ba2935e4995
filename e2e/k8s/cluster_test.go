package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NodeName is the cluster's one machine.
const NodeName = "node1"

// address is the machine's, on the loopback interface of the run's network namespace.
const address = "10.99.255.1"

// Cluster is a running cluster. It ends with the process.
type Cluster struct {
	*kubernetes.Clientset
	Config *rest.Config
	// Folder of the run. bin has kubectl, mesh and the cluster's programs, log their output.
	Folder string
	// Kubeconfig is the administrator's file.
	Kubeconfig string
	// Address is the machine's, which pods reach; DNS answers there.
	Address string
	// Steps are the durations of the start, from its beginning.
	Steps []Step

	ended map[string]<-chan struct{} // by program
}

// Step is one of the start's.
type Step struct {
	Name string
	Took time.Duration
}

// startCluster starts the cluster of this run and returns once its node is ready for pods. The
// processes go on until the run's namespaces end.
func startCluster(ctx context.Context) (*Cluster, error) {
	folder := os.Getenv(folderVariable)
	c := &Cluster{Folder: folder, Address: address, ended: make(map[string]<-chan struct{}), Kubeconfig: filepath.Join(folder, "pki", "admin.kubeconfig")}
	begin := time.Now()
	step := func(name string) { c.Steps = append(c.Steps, Step{name, time.Since(begin)}) }
	for _, name := range []string{"logs", "cni", "containerd", "volumes"} {
		if err := os.Mkdir(c.file(name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(makePKI(c.file("pki")), c.writeConfigs()); err != nil {
		return nil, err
	}
	pki := func(flag, file string) string { return "--" + flag + "=" + c.file("pki", file) }
	if err := c.run("containerd", "-c", c.file("containerd.toml")); err != nil {
		return nil, err
	}
	if err := c.run("etcd", "--name=e", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=e=http://127.0.0.1:2380"); err != nil {
		return nil, err
	}
	if err := c.run("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--advertise-address="+address,
		pki("tls-cert-file", "apiserver.crt"), pki("tls-private-key-file", "apiserver.key"), pki("client-ca-file", "ca.crt"),
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
		pki("service-account-key-file", "service-accounts.crt"), pki("service-account-signing-key-file", "service-accounts.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		pki("requestheader-client-ca-file", "front-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		pki("proxy-client-cert-file", "front.crt"), pki("proxy-client-key-file", "front.key"),
		pki("kubelet-client-certificate", "kubelet-client.crt"), pki("kubelet-client-key", "kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP", "--enable-aggregator-routing=true", "--profiling=false"); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, 0 // no limit of ours
	c.Config = config
	if c.Clientset, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if err := c.poll(ctx, "kube-apiserver", func() bool {
		return c.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}); err != nil {
		return nil, err
	}
	step("API server ready")
	for _, args := range [][]string{
		{"kube-controller-manager", "--kubeconfig=" + c.file("pki", "manager.kubeconfig"), pki("root-ca-file", "ca.crt"),
			pki("service-account-private-key-file", "service-accounts.key"), pki("cluster-signing-cert-file", "ca.crt"), pki("cluster-signing-key-file", "ca.key"),
			"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1",
			// Sooner than in production, for waiting tests.
			"--horizontal-pod-autoscaler-sync-period=2s", "--horizontal-pod-autoscaler-initial-readiness-delay=5s", "--pvclaimbinder-sync-period=2s"},
		{"kube-scheduler", "--kubeconfig=" + c.file("pki", "scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1"},
		{"kubelet", "--kubeconfig=" + c.file("pki", NodeName+".kubeconfig"), "--config=" + c.file("kubelet.yaml"), "--hostname-override=" + NodeName,
			"--cert-dir=" + c.file("pki", "kubelet"), "--node-ip=" + address},
		{"kube-proxy", "--config=" + c.file("proxy.yaml")},
		{"coredns", "-conf", c.file("Corefile")},
	} {
		if err := c.run(args[0], args[1:]...); err != nil {
			return nil, err
		}
	}
	if err := c.Import(ctx); err != nil {
		return nil, err
	}
	step("images imported")
	if err := c.poll(ctx, "kubelet", func() bool {
		node, err := c.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == v1.NodeReady && condition.Status == v1.ConditionTrue {
				return true
			}
		}
		return false
	}); err != nil {
		return nil, err
	}
	step("node ready")
	return c, nil
}

func (c *Cluster) file(parts ...string) string {
	return filepath.Join(append([]string{c.Folder}, parts...)...)
}

// Import loads the run's images into containerd.
func (c *Cluster) Import(ctx context.Context) error {
	socket := c.file("containerd", "c.sock")
	if err := c.poll(ctx, "containerd", func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		return err
	}
	archives, err := filepath.Glob(c.file("images", "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if said, err := exec.CommandContext(ctx, "ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", archive, err, said)
		}
	}
	return nil
}

// Tag gives an image another name.
func (c *Cluster) Tag(ctx context.Context, of, name string) error {
	if said, err := exec.CommandContext(ctx, "ctr", "-a", c.file("containerd", "c.sock"), "-n", "k8s.io", "images", "tag", "--force", of, name).CombinedOutput(); err != nil {
		return fmt.Errorf("tag %s: %w: %s", name, err, said)
	}
	return nil
}

// run starts a program of the cluster, its output into logs/NAME.
func (c *Cluster) run(name string, args ...string) error {
	log, err := os.Create(c.file("logs", name))
	if err != nil {
		return err
	}
	defer log.Close()
	program := c.file("bin", name)
	if _, err := os.Stat(program); err != nil {
		program = name // of a package
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	ended := make(chan struct{})
	c.ended[name] = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// poll waits for a state of the start, two minutes at most. The error has the last output of the program that must
// reach it.
func (c *Cluster) poll(ctx context.Context, program string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !is() {
		select {
		case <-c.ended[program]:
			return fmt.Errorf("%s has ended\n%s", program, c.Log(program))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", program, ctx.Err(), c.Log(program))
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// Log returns the end of the output of a cluster's program.
func (c *Cluster) Log(program string) string {
	data, err := os.ReadFile(c.file("logs", program))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

func (c *Cluster) writeConfigs() error {
	cgroupV1 := ""
	if !version2() {
		cgroupV1 = "failCgroupV1: false # refused by default\n"
	}
	var errs []error
	for name, text := range map[string]string{
		// restrict_oom_score_adj: without CAP_SYS_RESOURCE the sandbox's score cannot be lowered.
		"containerd.toml": `version = 2
root = "$D/containerd/root"
state = "/run/containerd-state"
[grpc]
  address = "$D/containerd/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$D/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`,
		"cni/10-mesh.conflist": `{"cniVersion":"0.4.0","name":"mesh","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,"ipMasq":false,
  "ipam":{"type":"host-local","dataDir":"$D/ipam","ranges":[[{"subnet":"10.99.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
`,
		"resolv.conf": "nameserver " + address + "\n",
		"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
` + cgroupV1 + `cgroupDriver: cgroupfs
cgroupRoot: /` + cgroupName + `
containerRuntimeEndpoint: unix://$D/containerd/c.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $D/pki/ca.crt}}
authorization: {mode: Webhook}
address: ` + address + `
failSwapOn: false
makeIPTablesUtilChains: false
clusterDNS: ["` + address + `"]
clusterDomain: cluster.local
resolvConf: $D/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
enforceNodeAllocatable: [pods]
configMapAndSecretChangeDetectionStrategy: Watch
syncFrequency: 10s
`,
		"proxy.yaml": `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.99.0.0/24
hostnameOverride: ` + NodeName + `
clientConnection: {kubeconfig: $D/pki/proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`,
		"Corefile": `.:53 {
  bind ` + address + `
  errors
  cache 2
  kubernetes cluster.local {
    kubeconfig $D/pki/admin.kubeconfig x
  }
}
`,
	} {
		errs = append(errs, os.WriteFile(c.file(name), []byte(strings.ReplaceAll(text, "$D", c.Folder)), 0o644))
	}
	return errors.Join(errs...)
}

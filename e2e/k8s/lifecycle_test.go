package k8s

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/toolmesh/toolmesh/subjects"
)

// install starts a mesh of the test's overlay with a number of agents, and installs the index of the load.
func (r *rig) install(t *testing.T, overlay string, agents int) {
	t.Helper()
	for _, folder := range slices.Compact([]string{"overlay", overlay, "load"}) {
		if err := os.CopyFS(filepath.Join(r.home, "testdata", folder), os.DirFS(filepath.Join("testdata", folder))); err != nil {
			t.Fatal(err)
		}
	}
	r.volumes(t, 4) // one more than NATS has
	r.must(t, "mesh auth template --nats-conf --data-dir k8s/credentials > k8s/credentials/mesh.conf && kubectl apply -k k8s/credentials")
	at := time.Now()
	r.must(t, "kubectl apply -k testdata/"+overlay)
	if agents > 1 {
		r.must(t, fmt.Sprintf("kubectl -n toolmesh scale deployment/mesh-agent --replicas %d", agents))
	}
	r.allReady(t, "nats", 3)
	figure("NATS: three servers ready, from `kubectl apply`", time.Since(at))
	r.allReady(t, "mesh-router", 2)
	r.allReady(t, "mesh-agent", agents)
	figure("mesh of three NATS servers, two routers, "+strconv.Itoa(agents)+" agents: ready, from `kubectl apply`", time.Since(at))
	service, err := r.CoreV1().Services(namespace).Get(t.Context(), "nats", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MESH_NATS_URL", "nats://"+service.Spec.ClusterIP+":4222")
	t.Setenv("MESH_NATS_NKEY", filepath.Join(r.home, "k8s/credentials/keys/admin.nk"))
	at = time.Now()
	r.must(t, "mesh install ./testdata/load && mesh call load.work.echo n:=7 ms:=0")
	figure("install through the mesh to the first call's result", time.Since(at))
	until(t, "all agents serve", func() (string, error) { return r.shell(t.Context(), "mesh info --json load.work.echo") }, func(said string) bool {
		return strings.Count(said, "mesh-agent-")+strings.Count(said, `"`+NodeName+`"`) >= agents
	})
}

// Each part of a mesh is replaced, evicted and killed under load, without a lost call, stream or task.
func TestLifeCycle(t *testing.T) {
	r := newRig(t)
	r.install(t, "overlay", 2)
	r.callFromAPod(t)
	l := startLoad(t, r.connect(t))
	l.goesOn(t)
	step := func(name string, do func(t *testing.T)) {
		t.Helper()
		if t.Failed() {
			return
		}
		before := r.nodeNames(t)
		at := time.Now()
		t.Run(name, do)
		if t.Failed() {
			return
		}
		figure("under load: "+name, time.Since(at))
		l.goesOn(t)
		r.noRecordOutlives(t, before)
	}
	step("new image of the pool, rolled out", func(t *testing.T) {
		if err := r.Tag(t.Context(), "docker.io/toolmesh/mesh-agent:0.1.0", "docker.io/toolmesh/mesh-agent:0.1.1"); err != nil {
			t.Fatal(err)
		}
		r.must(t, "kubectl -n toolmesh set image deployment/mesh-agent agent=toolmesh/mesh-agent:0.1.1 && kubectl -n toolmesh rollout status deployment/mesh-agent --timeout 10m")
		r.allReady(t, "mesh-agent", 2)
	})
	step("eviction of an agent", func(t *testing.T) { r.evict(t, "mesh-agent", 2) })
	step("eviction of a router", func(t *testing.T) { r.evict(t, "mesh-router", 2) })
	step("kill -9 of an agent", func(t *testing.T) { r.kill(t, "mesh-agent", 2) })
	step("kill -9 of a router", func(t *testing.T) { r.kill(t, "mesh-router", 2) })
	step("loss of an agent's pod", func(t *testing.T) { r.lose(t, "mesh-agent", 2) })
	step("loss of a router's pod", func(t *testing.T) { r.lose(t, "mesh-router", 2) })
	step("kill -9 of a NATS server", func(t *testing.T) { r.kill(t, "nats", 3) })
	step("restart of the routers", func(t *testing.T) {
		r.must(t, "kubectl -n toolmesh rollout restart deployment/mesh-router && kubectl -n toolmesh rollout status deployment/mesh-router --timeout 10m")
	})
	step("eviction of a NATS server", func(t *testing.T) { r.evict(t, "nats", 3) })
	step("rolling restart of NATS", func(t *testing.T) {
		r.must(t, "kubectl -n toolmesh rollout restart statefulset/nats && kubectl -n toolmesh rollout status statefulset/nats --timeout 15m")
		r.allReady(t, "nats", 3)
	})
	l.settle(t)
}

// callFromAPod calls a tool from a pod of another namespace, with a caller's key.
func (r *rig) callFromAPod(t *testing.T) {
	t.Helper()
	r.must(t, `kubectl create namespace apps && kubectl label namespace apps toolmesh-clients=allowed && kubectl -n apps create secret generic caller --from-file k8s/credentials/keys/caller.nk`)
	user := int64(65532)
	mode := int32(0o440)
	_, err := r.CoreV1().Pods("apps").Create(t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "caller"},
		Spec: v1.PodSpec{
			RestartPolicy:   v1.RestartPolicyNever,
			SecurityContext: &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, FSGroup: &user},
			Containers: []v1.Container{{
				Name: "caller", Image: "toolmesh/mesh-agent:0.1.0",
				Command:      []string{"mesh", "call", "load.work.echo", "n:=41", "ms:=1", "--server", "nats://nats.toolmesh:4222", "--nkey", "/key/caller.nk"},
				VolumeMounts: []v1.VolumeMount{{Name: "key", MountPath: "/key"}},
			}},
			Volumes: []v1.Volume{{Name: "key", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "caller", DefaultMode: &mode}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := until(t, "the caller's pod ends", func() (*v1.Pod, error) {
		return r.CoreV1().Pods("apps").Get(context.Background(), "caller", metav1.GetOptions{})
	},
		func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed })
	said := strings.TrimSpace(r.must(t, "kubectl -n apps logs caller"))
	if pod.Status.Phase != v1.PodSucceeded || said != "41" {
		t.Fatalf("a pod's call ended %s: %s", pod.Status.Phase, said)
	}
}

// evict evicts a pod by the API, checks that the budget refuses a second eviction, and waits until the workload has all
// its pods again.
func (r *rig) evict(t *testing.T, name string, n int) {
	t.Helper()
	pods := r.allReady(t, name, n)
	eviction := func(pod string) error {
		return r.PolicyV1().Evictions(namespace).Evict(t.Context(), &policy.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace}})
	}
	if err := eviction(pods[0].Name); err != nil {
		t.Fatal(err)
	}
	if err := eviction(pods[1].Name); !kerrors.IsTooManyRequests(err) {
		t.Errorf("a second pod of %s is evicted while the first is away: %v", name, err)
	}
	until(t, "the evicted pod is replaced", func() ([]v1.Pod, error) { return r.pods(name) }, func(now []v1.Pod) bool {
		for i := range now {
			if !ready(&now[i]) || now[i].UID == pods[0].UID {
				return false
			}
		}
		return len(now) == n
	})
}

// killProcesses ends all processes of a pod but the one that holds its namespaces, as the kernel does where memory runs out.
func killProcesses(t *testing.T, pod *v1.Pod) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, file := range processes {
		group, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(group, []byte("pod"+string(pod.UID))) {
			continue
		}
		name, err := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		if err != nil || strings.TrimSpace(string(name)) == "pause" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatalf("no process of %s was found", pod.Name)
	}
}

// kill ends a pod's processes, and waits until the kubelet has started it anew.
func (r *rig) kill(t *testing.T, name string, n int) {
	t.Helper()
	pod := r.allReady(t, name, n)[0]
	killProcesses(t, &pod)
	until(t, pod.Name+" is started anew", func() (*v1.Pod, error) {
		return r.CoreV1().Pods(namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
	}, func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > pod.Status.ContainerStatuses[0].RestartCount && ready(p)
	})
}

// nodeOf finds the id of the node in a pod's log.
var nodeOf = regexp.MustCompile(`"msg":"ready","node":"([^"]+)"`)

// lose removes a pod as the loss of its machine does, without a drain or a restart. It waits until no record of it is
// left, and then until its replacement exists.
func (r *rig) lose(t *testing.T, name string, n int) {
	t.Helper()
	pod := r.allReady(t, name, n)[0]
	node := nodeOf.FindStringSubmatch(r.must(t, "kubectl -n toolmesh logs "+pod.Name))
	if node == nil {
		t.Fatalf("%s does not say as what node it is ready", pod.Name)
	}
	at := time.Now()
	killProcesses(t, &pod)
	r.must(t, "kubectl -n toolmesh delete pod --force --grace-period 0 "+pod.Name)
	r.nothingIsLeft(t, []string{pod.Name, node[1]})
	figure("… no record of the lost pod of "+name+" is left, from its kill", time.Since(at))
	until(t, "another pod takes its place", func() ([]v1.Pod, error) { return r.pods(name) }, func(now []v1.Pod) bool {
		for i := range now {
			if !ready(&now[i]) || now[i].UID == pod.UID {
				return false
			}
		}
		return len(now) == n
	})
}

// buckets opens the mesh's key-value buckets as an administrator.
func (r *rig) buckets(t *testing.T) (jetstream.JetStream, func()) {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(os.Getenv("MESH_NATS_NKEY"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(os.Getenv("MESH_NATS_URL"), key, nats.CustomInboxPrefix(subjects.InboxAdmin))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js, nc.Close
}

// nodeNames are the pods that are nodes of the mesh now.
func (r *rig) nodeNames(t *testing.T) []string {
	t.Helper()
	pods, err := r.pods("mesh-agent")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

// noRecordOutlives waits until no bucket of the mesh names a removed pod.
func (r *rig) noRecordOutlives(t *testing.T, before []string) {
	t.Helper()
	now := strings.Join(r.nodeNames(t), " ")
	var gone []string
	for _, name := range before {
		if !strings.Contains(now, name) {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return
	}
	at := time.Now()
	r.nothingIsLeft(t, gone)
	t.Logf("%v left nothing, %v after the step", gone, time.Since(at).Round(100*time.Millisecond))
}

// nothingIsLeft waits until no bucket of the mesh names any of some nodes.
func (r *rig) nothingIsLeft(t *testing.T, gone []string) {
	t.Helper()
	js, done := r.buckets(t)
	defer done()
	until(t, "leases of pods that are gone end", func() (left []string, err error) {
		for _, bucket := range append(subjects.RegistryBuckets(), subjects.BucketLanes) {
			kv, err := js.KeyValue(t.Context(), bucket)
			if err != nil {
				return nil, err
			}
			keys, err := kv.ListKeys(t.Context())
			if err != nil {
				return nil, err
			}
			for key := range keys.Keys() {
				for _, name := range gone {
					if strings.Contains(key, name) {
						left = append(left, bucket+"/"+key)
					}
				}
			}
		}
		return left, nil
	}, func(left []string) bool { return len(left) == 0 })
}

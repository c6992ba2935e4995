package k8s

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespace is the one of the manifests.
const namespace = "toolmesh"

// waitTimeout bounds every wait for a state of the cluster: long, because machines are busy.
const waitTimeout = 5 * time.Minute

var started = sync.OnceValues(func() (*Cluster, error) {
	c, err := startCluster(context.Background())
	if err == nil {
		for _, step := range c.Steps {
			figure("cluster: "+step.Name+", from the first process", step.Took)
		}
	}
	return c, err
})

// figures are what the run measured, in the order of measuring.
var figures []string

func figure(what string, took time.Duration) {
	figures = append(figures, fmt.Sprintf("| %s | %.1f s |", what, took.Seconds()))
}

func printFigures() {
	if len(figures) == 0 {
		return
	}
	fmt.Printf("\n| what | time |\n|---|---|\n%s\n\n", strings.Join(figures, "\n"))
}

// rig is the cluster, and a folder like a fresh clone of the repository.
type rig struct {
	*Cluster
	home string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	c, err := started()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Cluster: c, home: t.TempDir()}
	for _, folder := range []string{"k8s", "examples/indexes/weather"} {
		if err := os.CopyFS(filepath.Join(r.home, folder), os.DirFS(filepath.Join(Root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	// The person's real keys must not matter.
	if err := os.RemoveAll(filepath.Join(r.home, "k8s/credentials/keys")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.explain(t)
		}
		r.empty(t)
	})
	return r
}

// empty removes the mesh and its volumes.
func (r *rig) empty(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{namespace, "apps"} {
		if _, err := r.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil {
			// This does not wait for drains; the test of the page does.
			if said, err := r.shell(ctx, fmt.Sprintf("kubectl -n %[1]s delete statefulset,deployment,daemonset --all --wait=false; kubectl -n %[1]s delete pods --all --force --grace-period 0; kubectl delete namespace %[1]s", name)); err != nil {
				t.Errorf("%v: %s", err, said)
			}
		}
	}
	if err := r.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// explain logs the state of the cluster.
func (r *rig) explain(t *testing.T) {
	for _, line := range []string{
		"kubectl -n toolmesh get all,pvc,events", "kubectl -n toolmesh describe pods | tail -150",
		"for p in $(kubectl -n toolmesh get pods -o name); do echo $p; kubectl -n toolmesh logs --tail 12 $p; kubectl -n toolmesh logs -p --tail 6 $p; done",
	} {
		said, _ := r.shell(context.Background(), line)
		t.Log(line + "\n" + said)
	}
}

func (r *rig) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = r.home
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(r.Folder, "bin")+":"+os.Getenv("PATH"), "HOME="+r.home,
		"XDG_STATE_HOME=", "KUBECONFIG="+r.Kubeconfig)
	return cmd
}

// shell runs a line in the folder, with kubectl and mesh in its path, and returns the output.
func (r *rig) shell(ctx context.Context, line string) (string, error) {
	cmd := r.command(ctx, line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (r *rig) must(t *testing.T, line string) string {
	t.Helper()
	said, err := r.shell(t.Context(), line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, said)
	}
	return said
}

// begin starts a command line that runs until the test ends, and returns after its first output.
func (r *rig) begin(t *testing.T, line string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := r.command(ctx, "exec "+line)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	go func() { _, _ = out.Read(make([]byte, 1<<16)) }() // forwarders say a line for each connection
}

// volumes makes a default storage class of local folders, as many as are said. They are bound late, as in the clouds.
func (r *rig) volumes(t *testing.T, n int) {
	t.Helper()
	late := storage.VolumeBindingWaitForFirstConsumer
	_, err := r.StorageV1().StorageClasses().Create(t.Context(), &storage.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "local", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late,
	}, metav1.CreateOptions{})
	if err != nil && !kerrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for range n {
		folder, err := os.MkdirTemp(filepath.Join(r.Folder, "volumes"), "v")
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "local-"},
			Spec: v1.PersistentVolumeSpec{
				Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("20Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany},
				StorageClassName: "local", PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: folder}},
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{NodeName}}},
				}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// until waits for a state of the cluster in the API server. A failure shows the last state.
func until[T any](t *testing.T, what string, read func() (T, error), is func(T) bool) T {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		got, err := read()
		if err == nil && is(got) {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v, at last %+v, %v", what, waitTimeout, got, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// pods are those of the namespace with a label app.kubernetes.io/name.
func (r *rig) pods(name string) ([]v1.Pod, error) {
	list, err := r.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func ready(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// allReady waits until there are so many pods of a name, all of them ready.
func (r *rig) allReady(t *testing.T, name string, n int) []v1.Pod {
	t.Helper()
	return until(t, fmt.Sprintf("%d pods of %s are ready", n, name), func() ([]v1.Pod, error) { return r.pods(name) }, func(pods []v1.Pod) bool {
		for i := range pods {
			if !ready(&pods[i]) {
				return false
			}
		}
		return len(pods) == n
	})
}

type podSpec = v1.PodSpec

// podOf is a pod of a workload's template.
func podOf(name string, of *v1.PodTemplateSpec) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of.Labels}, Spec: *of.Spec.DeepCopy()}
}

func hostFolder(s *podSpec) {
	s.Volumes = append(s.Volumes, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}})
}

func privileged(s *podSpec) {
	yes := true
	s.Containers[0].SecurityContext.Privileged, s.Containers[0].SecurityContext.AllowPrivilegeEscalation = &yes, nil
}

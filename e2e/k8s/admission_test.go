package k8s

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The API server admits all rendered manifests of k8s/ in a dry run, without a warning: it knows every field and allows
// every value.
func TestAdmission(t *testing.T) {
	r := newRig(t)
	r.must(t, "kubectl apply -f k8s/namespace/namespace.yaml && kubectl apply --server-side -f "+filepath.Join(r.Folder, "kind-keda.sh_scaledobjects.yaml")+
		" -f "+filepath.Join(r.Folder, "kind-monitoring.coreos.com_podmonitors.yaml")+" && kubectl wait --for condition=Established crd --all")
	const dryRun = "kubectl apply --dry-run=server --validate=strict --warnings-as-errors -f "
	files, err := filepath.Glob(filepath.Join(r.Folder, "manifests", "*.yaml"))
	if err != nil || len(files) < 24 {
		t.Fatalf("%d combinations, %v", len(files), err)
	}
	rendered, err := filepath.Glob(filepath.Join(r.home, "k8s/rendered/*.yaml"))
	if err != nil || len(rendered) < 2 {
		t.Fatalf("%d rendered overlays, %v", len(rendered), err)
	}
	r.must(t, "kubectl kustomize k8s/overlays/machines > machines.yaml")
	for _, file := range append(append(files, rendered...), filepath.Join(r.home, "machines.yaml")) {
		said, err := r.shell(t.Context(), dryRun+"'"+file+"'")
		if err != nil || strings.Contains(said, "Warning") {
			t.Errorf("%s: %v\n%s", filepath.Base(file), err, said)
		}
	}
	// The same check finds errors.
	dev, err := os.ReadFile(filepath.Join(r.home, "k8s/rendered/dev.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string][3]string{
		"a field that is misspelt":      {"terminationGracePeriodSeconds:", "terminationGracePeriodSecond:", "unknown field"},
		"a pod that asks for more":      {"runAsNonRoot: true", "runAsNonRoot: false", "PodSecurity"},
		"a budget with both its bounds": {"maxUnavailable: 25%\n  selector", "maxUnavailable: 25%\n  minAvailable: 1\n  selector", "cannot be both set"},
	} {
		broken := strings.Replace(string(dev), change[0], change[1], -1)
		if broken == string(dev) {
			t.Errorf("%s: there is no %q to break", what, change[0])
			continue
		}
		if err := os.WriteFile(filepath.Join(r.home, "broken.yaml"), []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := r.shell(t.Context(), dryRun+"broken.yaml"); err == nil || !strings.Contains(said, change[2]) {
			t.Errorf("%s is taken: %v\n%s", what, err, said)
		}
	}
}

// The namespace refuses a pod beyond the restricted profile, and admits each of ours.
func TestPodSecurity(t *testing.T) {
	r := newRig(t)
	r.must(t, "kubectl apply -f k8s/rendered/dev.yaml")
	until(t, "the namespace's account is there", func() (bool, error) {
		_, err := r.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, err
	}, func(is bool) bool { return is })
	deployments, err := r.AppsV1().Deployments(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(deployments.Items) != 2 {
		t.Fatalf("%d deployments, %v", len(deployments.Items), err)
	}
	for _, d := range deployments.Items {
		for what, breaks := range map[string]func(spec *podSpec){
			"":                 func(*podSpec) {},
			"root":             func(s *podSpec) { *s.SecurityContext.RunAsNonRoot = false },
			"hostNetwork":      func(s *podSpec) { s.HostNetwork = true },
			"privileged":       privileged,
			"seccomp":          func(s *podSpec) { s.SecurityContext.SeccompProfile = nil },
			"capabilities":     func(s *podSpec) { s.Containers[0].SecurityContext.Capabilities = nil },
			"escalation":       func(s *podSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
			"folder of a host": hostFolder,
		} {
			pod := podOf(d.Name+"-try", &d.Spec.Template)
			breaks(&pod.Spec)
			_, err := r.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			switch {
			case what == "" && err != nil:
				t.Errorf("%s is refused: %v", d.Name, err)
			case what != "" && (!kerrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`)):
				t.Errorf("%s with %s is not refused for it: %v", d.Name, what, err)
			}
		}
	}
}

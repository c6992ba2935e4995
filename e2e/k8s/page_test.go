package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// blocks returns the fenced texts in a section of docs/operations/kubernetes.md, n of them.
func blocks(t *testing.T, section string, n int) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(Root, "docs/operations/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, of, _ := strings.Cut(string(page), "## "+section+"\n")
	of, _, _ = strings.Cut(of, "\n## ")
	var found []string
	for _, block := range regexp.MustCompile("(?s)\n```[a-z]*\n(.*?)```").FindAllStringSubmatch(of, -1) {
		found = append(found, block[1])
	}
	if len(found) != n {
		t.Fatalf("the section %q of the page has %d blocks, want %d", section, len(found), n)
	}
	return found
}

// The commands under "From an empty cluster to a called tool" of docs/operations/kubernetes.md work as written, on a
// cluster with a default storage class and the images.
func TestKubernetesPage(t *testing.T) {
	r := newRig(t)
	r.volumes(t, 1)
	begin, ran := time.Now(), 0
	for line := range strings.Lines(blocks(t, "From an empty cluster to a called tool", 1)[0]) {
		at := time.Now()
		line = strings.TrimSpace(line)
		if strings.Contains(line, "port-forward") {
			r.begin(t, line)
		} else if said := r.must(t, line); strings.Contains(line, "mesh call") && !strings.Contains(said, `"Oslo: `) {
			t.Errorf("%s: %s", line, said)
		}
		if strings.Contains(line, "mesh install") {
			figure("page: install of `weather` to the first call's result", time.Since(at))
		}
		if strings.Contains(line, "rollout status") {
			figure("page: `kubectl apply` of `dev.yaml` to an agent that is ready", time.Since(at))
		}
		ran++
	}
	if ran != 5 {
		t.Errorf("the page has %d commands", ran)
	}
	figure("page: from an empty cluster to a called tool", time.Since(begin))
	for _, name := range []string{"mesh-agent", "mesh-router", "nats"} {
		for _, pod := range r.allReady(t, name, 1) {
			for _, s := range pod.Status.ContainerStatuses {
				if s.RestartCount > 0 {
					t.Errorf("%s was restarted %d times", pod.Name, s.RestartCount)
				}
			}
		}
	}
	at := time.Now()
	r.must(t, "kubectl delete namespace toolmesh")
	figure("page: `kubectl delete namespace toolmesh`", time.Since(at))
}

package k8s

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// repository serves a git repository with the index of the load, at an address that pods reach.
func (r *rig) repository(t *testing.T) (url string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(r.home, "repository"), os.DirFS("testdata/load")); err != nil {
		t.Fatal(err)
	}
	r.must(t, "cd repository && git init -q -b main && git add . && git -c user.name=t -c user.email=t@example.invalid commit -qm first && git update-server-info")
	listener, err := net.Listen("tcp", r.Address+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.StripPrefix("/load.git", http.FileServer(http.Dir(filepath.Join(r.home, "repository/.git"))))}}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + "/load.git"
}

// listenSilently accepts connections, and sends nothing.
func (r *rig) listenSilently(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", r.Address+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	return listener.Addr().String()
}

// The indexes of a ConfigMap are served, and a typo in it removes none.
func TestIndexesComponent(t *testing.T) {
	r := newRig(t)
	r.volumes(t, 1)
	const overlay = "testdata/overlay-indexes"
	if err := os.CopyFS(filepath.Join(r.home, overlay), os.DirFS(overlay)); err != nil {
		t.Fatal(err)
	}
	url := r.repository(t)
	list := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.home, overlay, "indexes.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.must(t, "kubectl apply -k "+overlay)
	}
	r.must(t, "mesh auth template --nats-conf --data-dir k8s/credentials > k8s/credentials/mesh.conf && kubectl apply -k k8s/credentials")
	component, err := os.ReadFile(filepath.Join(Root, "k8s/components/indexes/kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r.must(t, string(regexp.MustCompile(`kubectl -n toolmesh create secret .*`).Find(component))) // as it says

	good := "[[index]]\nsource = \"" + url + "\"\nname = \"load\"\n"
	list(good)
	r.allReady(t, "mesh-indexes", 1)
	r.allReady(t, "mesh-agent", 1)
	r.begin(t, "kubectl -n toolmesh port-forward service/nats 4222")
	t.Setenv("MESH_NATS_NKEY", filepath.Join(r.home, "k8s/credentials/keys/admin.nk"))
	calls := func() (string, error) {
		said, _ := r.shell(t.Context(), "mesh call load.work.echo n:=5 ms:=0") // its failures are checked, too
		return said, nil
	}
	until(t, "the index of the ConfigMap is called", calls, func(said string) bool { return strings.TrimSpace(said) == "5" })

	list(strings.Replace(good, "name =", "nmae =", 1) + "\n[[index]]\nsource = \"" + url + "\"\nname = \"second\"\n")
	said := until(t, "the typo is told", func() (string, error) { return r.shell(t.Context(), "mesh indexes") }, func(said string) bool {
		return strings.Contains(said, "nmae") && strings.Contains(said, "second")
	})
	t.Log(said)
	until(t, "the other entry is brought", func() (string, error) { return r.shell(t.Context(), "mesh call second.work.echo n:=6 ms:=0") },
		func(said string) bool { return strings.TrimSpace(said) == "6" })
	if said, _ := calls(); strings.TrimSpace(said) != "5" {
		t.Errorf("a typo took away what was served: %s", said)
	}
	if said := r.must(t, "kubectl -n toolmesh logs deployment/mesh-indexes"); !strings.Contains(said, "nmae") {
		t.Errorf("the log does not name what is wrong:\n%s", said)
	}

	// Silent sources and a missing secret do not affect other indexes.
	silent := r.listenSilently(t)
	r.must(t, "kubectl -n toolmesh create secret generic keys --from-literal API_KEY=v")
	list(good + "[[index]]\nsource = \"http://" + silent + "/silent.git\"\n[[index]]\nsource = \"http://" + r.Address + ":1/refused.git\"\n" +
		"[[index]]\nsource = \"" + url + "\"\nname = \"secret\"\nenv = [\"API_KEY\"]\n[[index]]\nsource = \"" + url + "\"\nname = \"third\"\n")
	until(t, "an entry beside these is brought", func() (string, error) { return r.shell(t.Context(), "mesh call third.work.echo n:=8 ms:=0") },
		func(said string) bool { return strings.TrimSpace(said) == "8" })
	for _, read := range []string{"mesh indexes", "kubectl -n toolmesh logs deployment/mesh-indexes"} {
		says(t, read, func() (string, error) { return r.shell(t.Context(), read) }, "has not answered in 30s", "Couldn't connect to server", "API_KEY") // logs are JSON, which escapes quotes
	}
	r.must(t, "kubectl -n toolmesh set env deployment/mesh-indexes --from secret/keys")
	until(t, "the entry with a secret that is there now", func() (string, error) { return r.shell(t.Context(), "mesh call secret.work.echo n:=9 ms:=0") },
		func(said string) bool { return strings.TrimSpace(said) == "9" })
	r.must(t, "kubectl -n toolmesh rollout status deployment/mesh-indexes --timeout 5m")

	// The working one is lost: the next one applies the current file.
	pod := r.allReady(t, "mesh-indexes", 1)[0]
	at := time.Now()
	killProcesses(t, &pod)
	r.must(t, "kubectl -n toolmesh delete pod --force --grace-period 0 "+pod.Name)
	until(t, "the next one has the lease", func() (string, error) {
		return r.shell(t.Context(), "kubectl -n toolmesh logs deployment/mesh-indexes")
	}, func(said string) bool { return strings.Contains(said, "this process keeps the indexes") })
	figure("indexes: the next router of `--indexes` works, from the loss of the last one's pod", time.Since(at))
	list("index = []\n")
	until(t, "an index that is listed no more is gone", calls, func(said string) bool {
		return strings.Contains(said, "offers a tool")
	})
}

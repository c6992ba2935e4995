package kubernetes_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitTimeout = time.Minute

// asked is what the API server was asked. The real one is in e2e/k8s.
type asked struct{ path, token, body string }

// server is an API server that says status, and a pod's service account for it.
func server(t *testing.T, status func() int) (opts *kubernetes.Options, requests chan asked) {
	t.Helper()
	requests = make(chan asked, 100)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(status())
		requests <- asked{r.Method + " " + r.URL.Path, r.Header.Get("Authorization"), string(body)}
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, text := range map[string]string{"ca.crt": string(ca), "token": "first\n", "namespace": "mesh"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &kubernetes.Options{Account: dir, Server: s.Listener.Addr().String(), Pod: "router-1"}, requests
}

func next(t *testing.T, requests chan asked) asked {
	t.Helper()
	select {
	case a := <-requests:
		return a
	case <-time.After(waitTimeout):
		t.Fatal("the API server was not asked")
		return asked{}
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	opts, requests := server(t, func() int { return http.StatusCreated })
	e, err := kubernetes.NewEvents("mesh-indexes", opts)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	e.Warn("IndexFailed", strings.Repeat("ü", 1000))
	a := next(t, requests)
	var event struct {
		Metadata  struct{ Name, Namespace string }
		Type      string
		Reason    string
		Note      string
		EventTime time.Time
		Regarding struct{ Kind, Name, Namespace string }
		Instance  string `json:"reportingInstance"`
	}
	if err := json.Unmarshal([]byte(a.body), &event); err != nil {
		t.Fatal(err)
	}
	if a.path != "POST /apis/events.k8s.io/v1/namespaces/mesh/events" || a.token != "Bearer first" {
		t.Errorf("asked %s with %s", a.path, a.token)
	}
	if event.Type != "Warning" || event.Reason != "IndexFailed" || event.Metadata.Namespace != "mesh" || !strings.HasPrefix(event.Metadata.Name, "mesh-indexes.") ||
		event.Regarding.Kind != "ConfigMap" || event.Regarding.Name != "mesh-indexes" || event.Instance != "router-1" || event.EventTime.IsZero() {
		t.Errorf("Event %s", a.body)
	}
	if len(event.Note) > 1024 || !utf8.ValidString(event.Note) || !strings.HasSuffix(event.Note, "…") {
		t.Errorf("a note of %d bytes", len(event.Note))
	}
	// The kubelet has put a new token there.
	if err := os.WriteFile(filepath.Join(opts.Account, "token"), []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.Note("IndexInstalled", "fine")
	if a := next(t, requests); a.token != "Bearer second" || !strings.Contains(a.body, `"type":"Normal"`) {
		t.Errorf("asked with %s: %s", a.token, a.body)
	}
}

// A service account without the right is told of in the log, and the next Event is tried all the same.
func TestEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	statuses := make(chan int, 2)
	statuses <- http.StatusForbidden
	statuses <- http.StatusCreated
	opts, requests := server(t, func() int { return <-statuses })
	var log strings.Builder
	opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e, err := kubernetes.NewEvents("mesh-indexes", opts)
	if err != nil {
		t.Fatal(err)
	}
	e.Warn("IndexFailed", "one")
	e.Warn("IndexFailed", "two")
	next(t, requests)
	next(t, requests)
	e.Stop()
	if !strings.Contains(log.String(), "403 Forbidden") {
		t.Errorf("logged: %s", log.String())
	}
}

func TestNoPod(t *testing.T) {
	t.Parallel()
	opts, _ := server(t, func() int { return http.StatusCreated })
	for name, o := range map[string]*kubernetes.Options{
		"no server":  {Account: opts.Account, Server: ":"},
		"no account": {Account: t.TempDir(), Server: opts.Server},
	} {
		if _, err := kubernetes.NewEvents("mesh-indexes", o); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "automountServiceAccountToken") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

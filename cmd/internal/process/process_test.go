package process_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The promised statuses, for each code that there is.
func TestStatus(t *testing.T) {
	t.Parallel()
	failed := []toolmesh.Code{
		"tool_error", "invalid_arguments", "result_not_serializable", "deadline_exceeded", "cancelled",
		"payload_too_large", "install_failed", "worker_crashed", "worker_out_of_memory",
	}
	for _, code := range toolmesh.Codes() {
		want := 3
		if slices.Contains(failed, code) {
			want = 1
		}
		if got := process.Status(code); got != want {
			t.Errorf("status of %s is %d, want %d", code, got, want)
		}
	}
	if got := process.Status(""); got != 0 {
		t.Errorf("status of success is %d", got)
	}
}

// Not parallel: it signals its own process, which ignores the signal as nohup has it.
func TestIgnoredHangup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop := process.Interrupts(t.Context())
	defer stop()
	for _, one := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if !signal.Ignored(syscall.SIGHUP) {
			t.Fatal("SIGHUP is not ignored any more")
		}
		if err := syscall.Kill(os.Getpid(), one); err != nil {
			t.Fatal(err)
		}
	}
	<-ctx.Done()
}

// Not parallel: it signals its own process.
func TestInterrupts(t *testing.T) {
	ctx, stop := process.Interrupts(t.Context())
	defer stop()
	if process.Interrupted(ctx) {
		t.Fatal("interrupted before any signal")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if !process.Interrupted(ctx) || !errors.Is(context.Cause(ctx), process.ErrInterrupted) {
		t.Errorf("cause is %v, want ErrInterrupted", context.Cause(ctx))
	}
	other, cancel := context.WithCancel(t.Context())
	cancel()
	if process.Interrupted(other) {
		t.Error("a context that was cancelled counts as interrupted")
	}
}

func TestDataFolder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env       []string
		set, want string
	}{
		"set":          {[]string{"HOME=/h"}, "/d", "/d"},
		"xdg":          {[]string{"HOME=/h", "XDG_DATA_HOME=/x"}, "", "/x/toolmesh"},
		"xdg relative": {[]string{"HOME=/h", "XDG_DATA_HOME=x"}, "", "/h/.local/share/toolmesh"},
		"home":         {[]string{"HOME=/h"}, "", "/h/.local/share/toolmesh"},
		"the last one": {[]string{"HOME=/h", "HOME=/i"}, "", "/i/.local/share/toolmesh"},
	} {
		if got, err := process.DataFolder(tc.env, tc.set); err != nil || got != tc.want {
			t.Errorf("%s: %q %v, want %q", name, got, err, tc.want)
		}
	}
	for _, env := range [][]string{nil, {"HOME="}, {"HOME=."}} {
		if got, err := process.DataFolder(env, ""); err == nil {
			t.Errorf("without a home, %q: %q, want an error", env, got)
		}
	}
	for _, dir := range []string{"/a:b", "/caf\xe9"} {
		if got, err := process.DataFolder(nil, dir); err == nil {
			t.Errorf("a folder that no tool and no record can name: %q, want an error", got)
		}
	}
}

// A folder has one user at a time, and its node keeps its id over them.
func TestFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "folder")
	first, err := process.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.OpenFolder(dir); !errors.Is(err, process.ErrInUse) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("second opening: %v, want ErrInUse by a process", err)
	}
	id, err := first.NodeID("")
	if err != nil || id == "" {
		t.Fatalf("node id %q: %v", id, err)
	}
	if set, err := first.NodeID("gpu-1"); err != nil || set != "gpu-1" {
		t.Errorf("the id that was set: %q %v", set, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := process.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if again, err := second.NodeID(""); err != nil || again != id {
		t.Errorf("node id %q %v, was %q", again, err, id)
	}
	elsewhere, err := process.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = elsewhere.Close() }()
	if other, err := elsewhere.NodeID(""); err != nil || other == id {
		t.Errorf("two folders have the node id %q: %v", other, err)
	}
}

// A router that no setting tells its mesh joins the one that mesh up left, and its gateway is at the same.
func TestGatewayIsAtTheMeshOfItsRouter(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	left := connect.Record{URL: meshtest.Broker(t).URL, PID: os.Getpid(), Process: connect.ProcessID(os.Getpid())}
	if err := connect.State(filepath.Join(state, "toolmesh")).Write(left, connect.Record{}); err != nil {
		t.Fatal(err)
	}
	gatewayLists(t, http.StatusOK, "XDG_STATE_HOME="+state)
}

// The gateway of a router with a saved context takes the CA and tls_first of that context.
func TestGatewayTrustsTheServersOfItsRouter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, cert, cert, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	save := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certFile := save("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	keyFile := save("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	for verify, want := range map[bool]int{
		false: http.StatusOK,
		true:  http.StatusServiceUnavailable, // the server asks for the router's certificate, which no bearer may use
	} {
		t.Run(fmt.Sprint("verify ", verify), func(t *testing.T) {
			s := meshtest.Broker(t, meshtest.Config(fmt.Sprintf(`tls { cert_file: %q, key_file: %q, ca_file: %q, verify: %t, handshake_first: true, timeout: 60 }
accounts { MESH { jetstream: enabled, users: [ { user: router, password: hush }, { user: bearer } ] } }
no_auth_user: bearer`, certFile, keyFile, certFile, verify)))
			save("nats/context/work.json", fmt.Appendf(nil, `{"url": "nats://%s", "user": "router", "password": "hush", "ca": %q, "cert": %q, "key": %q, "tls_first": true}`,
				s.Address(), certFile, certFile, keyFile))
			gatewayLists(t, want, "XDG_CONFIG_HOME="+dir, "NATS_CONTEXT=work")
		})
	}
}

// gatewayLists runs a router with a gateway in an environment, and asks that for the tools.
func gatewayLists(t *testing.T, want int, env ...string) {
	t.Helper()
	log, to := io.Pipe()
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- process.Router(ctx, []string{"--gateway-listen=127.0.0.1:0"}, env, io.Discard, to, "test")
		_ = to.Close()
	}()
	var url, said string
	for lines := bufio.NewScanner(log); lines.Scan(); {
		said += lines.Text() + "\n"
		if _, after, ok := strings.Cut(lines.Text(), " gateway="); ok {
			url = after
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, log) }() // ends with the router
	if url == "" {
		t.Fatalf("no gateway is served:\n%s", said)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/tools", nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(a.Body)
	_ = a.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if a.StatusCode != want {
		t.Errorf("the list of tools is %s: %s", a.Status, body)
	}
	end()
	if status := <-ended; status != process.StatusOK {
		t.Errorf("status %d", status)
	}
}

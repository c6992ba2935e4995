package index

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
)

// names is a resolver with the test's answers.
func names(all map[string][]string) resolver {
	return func(_ context.Context, _, host string) ([]netip.Addr, error) {
		var found []netip.Addr
		for _, a := range all[host] {
			found = append(found, netip.MustParseAddr(a))
		}
		if found == nil {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		return found, nil
	}
}

func fetchPublic(t *testing.T, text string, lookup resolver) (*Tree, error) {
	t.Helper()
	how := fetching{git: "git", timeout: time.Minute, limits: defaultLimits, lookup: lookup, apart: apart(t)}
	return how.fetch(t.Context(), source(t, text), filepath.Join(t.TempDir(), "tree"), "")
}

// Sources that are not on the internet are refused in every spelling, before any request
// is sent.
func TestFetchPublicRefuses(t *testing.T) {
	t.Parallel()
	lookup := names(map[string][]string{
		"inside.example": {"10.1.2.3"}, "half.example": {"93.184.216.34", "192.168.0.7"}, "mapped.example": {"::ffff:127.0.0.1"},
		"six.example": {"2606:2800:220:1::1", "fd00::1"}, "localtest.example": {"127.0.0.1"},
	})
	for _, text := range []string{
		"http://127.0.0.1/x", "https://127.1.2.3:8443/x", "http://2130706433/x", "http://0x7f.1/x", "http://0x7f000001/x", "http://017700000001/x",
		"http://127.1/x", "http://0/x", "http://0.0.0.0/x", "http://1.0x/x", "http://localhost/x", "http://LOCALHOST:8080/x", "http://a.localhost/x", "http://localhost./x",
		"http://10.0.0.1/x", "http://172.31.255.1/x", "http://192.168.1.1/x", "http://169.254.169.254/latest", "http://100.64.0.1/x", "http://224.0.0.1/x",
		"http://255.255.255.255/x", "http://[::1]/x", "http://[::]/x", "http://[::ffff:10.0.0.1]/x", "http://[::ffff:a00:1]/x", "http://[::127.0.0.1]/x",
		"http://[fe80::1%25eth0]/x", "http://[fd12::1]/x", "http://[64:ff9b::a00:1]/x", "http://[2002:7f00:1::1]/x", "http://[ff02::1]/x",
		"http://127。0。0。1/x", "http://ⓛocalhost/x", "http://127.0.0.1%2e/x", "http://user:pw@127.0.0.1/x", "http://example.com@127.0.0.1/x",
		"ssh://git@127.0.0.1/x", "ssh://git@[::1]:22/x", "git@127.0.0.1:x", "git@localhost:x", "git@2130706433:x", "git@inside.example:x", "ssh://inside.example/x",
		"http://inside.example/x", "http://half.example/x", "http://mapped.example/x", "https://six.example/x", "https://localtest.example/x@main",
		"file:///etc", "file://localhost/srv/x.git",
	} {
		src, err := Parse(text)
		if err != nil {
			continue // invalid sources are refused before
		}
		_, err = fetchPublic(t, text, lookup)
		var e *toolmesh.Error
		if !errors.As(err, &e) || e.Code != toolmesh.CodeInvalidRequest || e.Details["reason"] != reasonPrivate || !strings.Contains(e.Message, "--private-sources") || strings.Contains(e.Message, "pw") {
			t.Errorf("%s (%s): %v, want that it is refused and how it is allowed", text, src, err)
		}
	}
	for _, text := range []string{"https://unknown.example/x", "git@unknown.example:x"} {
		_, err := fetchPublic(t, text, lookup)
		wantFailed(t, err, reasonUnreachable, "unknown.example")
	}
}

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"8.8.8.8": true, "172.32.0.1": true, "100.128.0.1": true, "2606:4700::1111": true, "64:ff9b::808:808": true, "2002:808:808::1": true,
		"127.1.2.3": false, "10.1.1.1": false, "169.254.1.1": false, "224.0.0.1": false, "255.255.255.255": false, "0.0.0.0": false, "0.1.1.1": false, "100.64.0.1": false,
		"::1": false, "::": false, "fe80::1": false, "fd00::1": false, "ff02::1": false, "fec0::1": false,
		"::ffff:8.8.8.8": true, "::ffff:192.168.0.1": false, "64:ff9b::7f00:1": false, "2002:a00:1::": false,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is public: %v, want %v", text, got, want)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// Requests go to the address that was checked, even if the name resolves differently by
// then: a name that does not resolve any more is still reached.
func TestFetchGoesWhereItWasLooked(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "pinned.invalid:") {
			asked.Add(1)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	u, err := neturl.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := git{command: "git", pin: &pin{host: "pinned.invalid", ports: []string{u.Port()}, addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}
	_, err = g.fetch(t.Context(), "http://pinned.invalid:"+u.Port()+"/x", nil, "", t.TempDir(), defaultLimits, apart(t))
	wantFailed(t, err, reasonUnreachable)
	if asked.Load() < 2 {
		t.Errorf("the server was asked %d times, want by us and by git: %v", asked.Load(), err)
	}
}

// Names that only a proxy knows are its to look up.
func TestFetchPublicByAProxy(t *testing.T) {
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(proxy.Close)
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "http.proxy")
	t.Setenv("GIT_CONFIG_VALUE_0", proxy.URL)
	_, err := fetchPublic(t, "http://elsewhere.invalid/x", names(nil))
	wantFailed(t, err, reasonUnreachable)
	if asked.Load() == 0 {
		t.Errorf("the proxy was not asked: %v", err)
	}
	_, err = fetchPublic(t, "http://10.0.0.1/x", names(nil))
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("an address in a private network, by a proxy: %v", err)
	}
}

// No filter of the machine's git runs on the content of a repository, such as one
// that fetches from an address in the repository.
func TestFetchRunsNoFilter(t *testing.T) {
	t.Setenv("GIT_CONFIG_COUNT", "2")
	t.Setenv("GIT_CONFIG_KEY_0", "filter.shout.smudge")
	t.Setenv("GIT_CONFIG_VALUE_0", "tr a-z A-Z")
	t.Setenv("GIT_CONFIG_KEY_1", "filter.shout.clean")
	t.Setenv("GIT_CONFIG_VALUE_1", "cat")
	repo := repository(t, map[string]string{".gitattributes": "* filter=shout\n", "a.txt": "quiet"})
	tree, err := fetch(t, "file://"+repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(tree.Dir, "a.txt")); err != nil || string(got) != "quiet" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

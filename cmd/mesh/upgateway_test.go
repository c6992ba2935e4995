package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/meshtest"
)

// gatewayOf is where the log of `mesh up` says that the gateway is served.
func gatewayOf(t *testing.T, log *watch) string {
	t.Helper()
	var at []string
	meshtest.Until(t, "the log says where the gateway is served", func() bool {
		at = regexp.MustCompile(`gateway=(http://\S+)\n`).FindStringSubmatch(log.text())
		return at != nil
	})
	return at[1]
}

// `mesh up` refuses tokens that it does not know, also many at once. It ends what a token reads
// with a problem when the token is revoked or its session ends, and refuses the token from then on.
func TestGatewayOfUpRefusesTokens(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	up, _, log := startUp(t, home, "--gateway-listen=127.0.0.1:0")
	defer func() {
		_ = up.Process.Signal(os.Interrupt)
		if err := up.Wait(); err != nil {
			t.Errorf("end of mesh up: %v\n%s", err, log.text())
		}
	}()
	at := gatewayOf(t, log)
	ask := func(path, token string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return &http.Response{Body: http.NoBody}
		}
		return a
	}
	status := func(token string) int {
		a := ask("/v1/tools", token)
		defer a.Body.Close()
		return a.StatusCode
	}
	defer http.DefaultClient.CloseIdleConnections()

	var strangers sync.WaitGroup
	for range 48 {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := pair.Seed()
		if err != nil {
			t.Fatal(err)
		}
		strangers.Go(func() {
			got := status(string(seed))
			for end := time.Now().Add(time.Minute); got == http.StatusServiceUnavailable && time.Now().Before(end); { // a busy machine has not asked the mesh in time
				got = status(string(seed))
			}
			if got != http.StatusUnauthorized {
				t.Errorf("a token of another mesh: status %d", got)
			}
		})
	}
	strangers.Wait()
	for line := range strings.Lines(log.text()) {
		slow := strings.Contains(line, "Readloop processing time") // the broker's, of a busy machine
		if !slow && (strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")) {
			t.Errorf("the log has a line of tokens that strangers make up: %s", line)
		}
	}

	type made struct{ ID, Token string }
	mesh := func(args ...string) (m made) {
		t.Helper()
		cmd := meshCommand(t, home, args...)
		cmd.Dir = home // which gets the file of the key
		out, err := cmd.Output()
		if err == nil && len(out) > 0 {
			err = json.Unmarshal(out, &m)
		}
		if err != nil {
			t.Fatalf("mesh %v: %v %s", args, err, out)
		}
		return m
	}
	key := mesh("session", "create", "mine", "--key", "--json")
	token := mesh("token", "create", "--session", "mine", "--json")
	for _, c := range []struct{ token, end string }{{token.Token, "token revoke " + token.ID}, {key.Token, "session end mine --json"}} {
		meshtest.Until(t, "the token is taken", func() bool { return status(c.token) == http.StatusOK })
		events := ask("/v1/events", c.token)
		defer events.Body.Close()
		if events.StatusCode != http.StatusOK {
			t.Fatalf("events: status %d", events.StatusCode)
		}
		if out, err := meshCommand(t, home, strings.Fields(c.end)...).CombinedOutput(); err != nil {
			t.Fatalf("mesh %s: %v\n%s", c.end, err, out)
		}
		told, err := io.ReadAll(events.Body)
		if err != nil || !strings.Contains(string(told), "event: problem\n") || !strings.Contains(string(told), `"code":"unauthenticated"`) {
			t.Errorf("behind mesh %s: %v %s", c.end, err, told)
		}
		meshtest.Until(t, "the token is refused", func() bool { return status(c.token) == http.StatusUnauthorized })
	}
}

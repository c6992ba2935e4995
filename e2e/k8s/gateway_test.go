package k8s

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Routers with the gateway's component serve HTTP and MCP through its Service, with a session's token and without one. A
// stream whose router is removed goes on at another one, without a lost or repeated item.
func TestGateway(t *testing.T) {
	r := newRig(t)
	page := strings.Split(blocks(t, "The gateway", 2)[1], "\n")
	if len(page) != 5 || !strings.HasPrefix(page[0], "kubectl -n toolmesh create secret tls mesh-gateway --cert tls.crt --key tls.key") {
		t.Fatalf("the page has other commands:\n%s", strings.Join(page, "\n"))
	}
	r.must(t, `kubectl apply -f k8s/namespace/namespace.yaml && openssl req -x509 -newkey ed25519 -nodes -days 1 -subj /CN=tools -addext subjectAltName=DNS:tools.mycompany.com -keyout tls.key -out tls.crt 2>&1`)
	r.must(t, page[0])
	r.install(t, "overlay-gateway", 1)
	if ingress, err := r.NetworkingV1().Ingresses(namespace).Get(t.Context(), "mesh-gateway", metav1.GetOptions{}); err != nil ||
		ingress.Spec.Rules[0].Host != "tools.mycompany.com" || ingress.Spec.TLS[0].SecretName != "mesh-gateway" {
		t.Errorf("the Ingress is %+v, %v", ingress, err)
	}
	service, err := r.CoreV1().Services(namespace).Get(t.Context(), "mesh-gateway", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var session struct{ Token string }
	if err := json.Unmarshal([]byte(r.must(t, "mesh session create lab --key --json 2>/dev/null")), &session); err != nil || session.Token == "" {
		t.Fatalf("a session without a token: %v", err)
	}
	r.must(t, "mesh install ./testdata/load --name mine --session lab")

	request := func(method, url, body string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	says := func(status int, want string, answer *http.Response) {
		t.Helper()
		said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		if err != nil || answer.StatusCode != status || !strings.Contains(string(said), want) {
			t.Errorf("%s %s: %s %s, %v; want %d with %s", answer.Request.Method, answer.Request.URL.Path, answer.Status, said, err, status, want)
		}
	}
	gateway := "http://" + service.Spec.ClusterIP + ":8420"
	token := []string{"Authorization", "Bearer " + session.Token}
	says(200, "7", request("POST", gateway+"/v1/tools/load.work.echo", `{"n":7,"ms":0}`))
	says(200, "8", request("POST", gateway+"/v1/tools/mine.work.echo", `{"n":8,"ms":0}`, token...))
	says(404, "tool_not_found", request("POST", gateway+"/v1/tools/mine.work.echo", `{"n":8,"ms":0}`))
	says(401, "unauthenticated", request("GET", gateway+"/v1/tools", "", "Authorization", "Bearer of-nobody"))
	says(200, "mine.work.echo", request("GET", gateway+"/v1/tools", "", token...))
	says(200, "9", request("POST", gateway+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mine-work-echo","arguments":{"n":9,"ms":0},"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
		append(token, "Accept", "application/json, text/event-stream", "Mcp-Method", "tools/call", "Mcp-Name", "mine-work-echo", "Mcp-Protocol-Version", "2026-07-28")...))

	// The stream is begun at one router; then its pod is deleted.
	const items = 100
	first := r.allReady(t, "mesh-router", 2)[0]
	stream := request("POST", podGateway(&first)+"/v1/tools/mine.work.count", fmt.Sprintf(`{"n":%d,"ms":100}`, items), append(token, "Accept", "text/event-stream")...)
	id, next, deleted := stream.Header.Get("Mesh-Rpc-Id"), 0, time.Time{}
	last := readEvents(t, stream, &next, func() {
		if next == 5 {
			deleted = time.Now()
			if err := r.CoreV1().Pods(namespace).Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	if !strings.Contains(last, `"unavailable"`) || next < 5 || next == items {
		t.Fatalf("the stream of a router that leaves ends after %d items with %s", next, last)
	}
	again := request("GET", gateway+"/v1/calls/"+id+"/stream", "", append(token, "Last-Event-ID", fmt.Sprint(next))...)
	last = readEvents(t, again, &next, func() {})
	if next != items || !strings.Contains(last, fmt.Sprintf(`"count":%d`, items)) {
		t.Errorf("the stream goes on to %d items, and ends with %s", next, last)
	}
	figure("gateway: a stream whose router's pod was deleted, to its end at another (10 s of items)", time.Since(deleted))
	r.allReady(t, "mesh-router", 2)
}

func podGateway(pod *v1.Pod) string { return "http://" + pod.Status.PodIP + ":8420" }

// readEvents reads the events of a stream of numbers from next on, and returns the events after the items.
func readEvents(t *testing.T, of *http.Response, next *int, read func()) (last string) {
	t.Helper()
	if of.StatusCode != http.StatusOK {
		said, err := io.ReadAll(io.LimitReader(of.Body, 1<<20))
		t.Fatalf("%s %s, %v", of.Status, said, err)
	}
	event := ""
	for lines := bufio.NewScanner(of.Body); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if event != "item" {
			return data
		}
		if data != fmt.Sprint(*next) {
			t.Fatalf("item %d is %s", *next, data)
		}
		*next++
		read()
	}
	return ""
}

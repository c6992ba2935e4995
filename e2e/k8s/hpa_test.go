package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	autoscaling "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provider serves External metrics to the cluster. It asks a router, as an adapter asks Prometheus, and is not under
// test.
func (r *rig) provider(t *testing.T) {
	t.Helper()
	service, err := r.CoreV1().Services(namespace).Get(t.Context(), "mesh-router", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const metric, api = "toolmesh_pool_wanted_slots", "/apis/external.metrics.k8s.io/v1beta1"
	handler := func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasPrefix(req.URL.Path, api+"/namespaces/") {
			fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1",
				"resources":[{"name":%q,"namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]}]}`, metric)
			return
		}
		pool, ok := strings.CutPrefix(req.URL.Query().Get("labelSelector"), "pool=")
		if !ok || !strings.HasSuffix(req.URL.Path, "/"+metric) {
			http.Error(w, "no such metric", http.StatusNotFound)
			return
		}
		answer, err := http.Get("http://" + service.Spec.ClusterIP + ":9464/demand/" + pool)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer answer.Body.Close()
		var demand struct {
			Wanted int `json:"wanted_slots"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&demand); err != nil || answer.StatusCode != http.StatusOK {
			http.Error(w, answer.Status, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},
			"items":[{"metricName":%q,"metricLabels":{"pool":%q},"timestamp":%q,"value":"%d"}]}`, metric, pool, time.Now().UTC().Format(time.RFC3339), demand.Wanted)
	}
	listener, err := net.Listen("tcp", r.Address+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: kube-system}
spec: {ports: [{port: 443, targetPort: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics, namespace: kube-system, labels: {kubernetes.io/service-name: metrics}}
addressType: IPv4
ports: [{port: %[2]d}]
endpoints: [{addresses: [%[1]q]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics, namespace: kube-system}
`, r.Address, listener.Addr().(*net.TCPAddr).Port)
	file := filepath.Join(r.home, "provider.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.must(t, "kubectl apply -f provider.yaml")
	// A group of the API without a server keeps namespaces from being deleted.
	t.Cleanup(func() {
		if said, err := r.shell(context.Background(), "kubectl delete -f provider.yaml"); err != nil {
			t.Errorf("%v: %s", err, said)
		}
	})
}

// The HorizontalPodAutoscaler of the component follows the demand, up and down, without a lost call.
func TestAutoscaler(t *testing.T) {
	r := newRig(t)
	r.install(t, "overlay-hpa", 1)
	r.provider(t)
	l := startLoad(t, r.connect(t))
	l.goesOn(t)
	size := func() (int, error) {
		d, err := r.AppsV1().Deployments(namespace).Get(t.Context(), "mesh-agent", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		return int(d.Status.ReadyReplicas), nil
	}
	until(t, "the autoscaler reads the metric", func() (*autoscaling.HorizontalPodAutoscaler, error) {
		return r.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(t.Context(), "mesh-agent", metav1.GetOptions{})
	}, func(h *autoscaling.HorizontalPodAutoscaler) bool {
		for _, c := range h.Status.Conditions {
			if c.Type == autoscaling.ScalingActive {
				return c.Status == v1.ConditionTrue
			}
		}
		return false
	})
	settled := until(t, "a size for the usual load", size, func(n int) bool { return n >= 1 })
	at := time.Now()
	stop := l.more(16, 2000)
	until(t, "the pool grows", size, func(n int) bool { return n >= 4 })
	figure(fmt.Sprintf("autoscaler: %d to 4 agents ready, from the first of 16 more calls at once", settled), time.Since(at))
	l.goesOn(t)
	stop()
	at = time.Now()
	until(t, "the pool shrinks under the usual load", size, func(n int) bool { return n < 4 })
	figure("autoscaler: shrinks, from the last of these calls, with a window of 10 s", time.Since(at))
	l.goesOn(t)
	l.settle(t)
	until(t, "an idle pool has one agent", size, func(n int) bool { return n == 1 })
}

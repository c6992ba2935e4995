package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
)

// Account is the folder that Kubernetes mounts a pod's service account at.
const Account = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// eventsMost is how many Events may wait for the API server; further ones are dropped.
	eventsMost = 64
	postWithin = 10 * time.Second
	// noteMost is how many bytes the API server takes as an Event's message.
	noteMost = 1024
)

// Options are where the API server is and who asks it.
type Options struct {
	// Account is the folder with token, ca.crt and namespace. Defaults to [Account].
	Account string
	// Server is the API server's host and port, as KUBERNETES_SERVICE_HOST and
	// KUBERNETES_SERVICE_PORT of a pod have them.
	Server string
	// Pod is the name of this pod, which Events name as their instance.
	Pod string
	// Logger takes what could not be said; nil discards it.
	Logger *slog.Logger
}

// Events creates Events of one ConfigMap, in order and in the background, until [Events.Stop]. They are of the group
// events.k8s.io, version v1: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/.
type Events struct {
	opts      Options
	configMap string
	namespace string
	client    *http.Client
	log       *slog.Logger
	queue     chan map[string]any
	end       context.CancelFunc
	wg        sync.WaitGroup
}

// NewEvents has Events created of a ConfigMap in the pod's namespace. The error is
// invalid_request where this is no pod with a service account.
func NewEvents(configMap string, opts *Options) (*Events, error) {
	o := *cmp.Or(opts, &Options{})
	o.Account = cmp.Or(o.Account, Account)
	fail := func(err error) (*Events, error) {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "Events of Kubernetes need a pod with a service account's token (automountServiceAccountToken): %w", err)
	}
	if host, _, err := net.SplitHostPort(o.Server); err != nil || host == "" {
		return fail(fmt.Errorf("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"))
	}
	namespace, err := os.ReadFile(filepath.Join(o.Account, "namespace"))
	if err != nil {
		return fail(err)
	}
	authority, err := os.ReadFile(filepath.Join(o.Account, "ca.crt"))
	if err != nil {
		return fail(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return fail(fmt.Errorf("%s has no certificate", filepath.Join(o.Account, "ca.crt")))
	}
	ctx, end := context.WithCancel(context.Background())
	e := &Events{
		opts: o, configMap: configMap, namespace: strings.TrimSpace(string(namespace)),
		// No keep-alive: an Event is rare, and a connection that stays open is the API server's to pay.
		client: &http.Client{Timeout: postWithin, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}},
		log:    cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), queue: make(chan map[string]any, eventsMost), end: end,
	}
	e.wg.Go(func() { e.run(ctx) })
	return e, nil
}

// Stop ends what is under way; what waits is not said any more.
func (e *Events) Stop() {
	e.end()
	e.wg.Wait()
}

// Warn creates an Event of type Warning, Note one of type Normal. reason is a word in
// CamelCase. Neither waits.
func (e *Events) Warn(reason, note string) { e.add("Warning", reason, note) }

// Note is [Events.Warn] for what is as it should be.
func (e *Events) Note(reason, note string) { e.add("Normal", reason, note) }

func (e *Events) add(kind, reason, note string) {
	if len(note) > noteMost {
		note = strings.ToValidUTF8(note[:noteMost-len("…")], "") + "…"
	}
	ev := map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event",
		"metadata":  map[string]string{"name": e.configMap + "." + uuid.NewString(), "namespace": e.namespace},
		"eventTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), // a MicroTime
		"type":      kind, "reason": reason, "action": "Reconcile", "note": note,
		"regarding":           map[string]string{"apiVersion": "v1", "kind": "ConfigMap", "name": e.configMap, "namespace": e.namespace},
		"reportingController": "toolmesh.dev/mesh-router", "reportingInstance": cmp.Or(e.opts.Pod, "mesh-router"),
	}
	select {
	case e.queue <- ev:
	default:
		e.log.Warn("an Event is dropped: the API server is behind", slog.String("reason", reason))
	}
}

func (e *Events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-e.queue:
			if err := e.post(ctx, ev); err != nil && ctx.Err() == nil {
				e.log.Warn("the API server did not take an Event: may the service account create events of events.k8s.io here?",
					slog.Any("reason", ev["reason"]), slog.String("error", err.Error()))
			}
		}
	}
}

func (e *Events) post(ctx context.Context, ev map[string]any) error {
	token, err := os.ReadFile(filepath.Join(e.opts.Account, "token")) // anew each time: the kubelet rotates it
	if err != nil {
		return err
	}
	body, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	url := "https://" + e.opts.Server + "/apis/events.k8s.io/v1/namespaces/" + e.namespace + "/events"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusCreated {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, noteMost))
	return fmt.Errorf("%s: %s", resp.Status, said)
}

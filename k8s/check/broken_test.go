package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// remove, as the value of a break, takes the field away.
type remove struct{}

// put returns the new value for an old one.
type put func(old any) any

// path is where a break is: names of fields and numbers of items.
type path []any

// change changes the value at a path.
func change(t *testing.T, in any, at path, to any) any {
	t.Helper()
	if len(at) == 0 {
		if f, ok := to.(put); ok {
			return f(in)
		}
		return to
	}
	switch key := at[0].(type) {
	case string:
		m, ok := in.(map[string]any)
		if !ok {
			if in != nil {
				t.Fatalf("%v is no object", in)
			}
			m = map[string]any{}
		}
		if _, ok := to.(remove); ok && len(at) == 1 {
			if _, ok := m[key]; !ok {
				t.Fatalf("there is no %s to remove", key)
			}
			delete(m, key)
			return m
		}
		m[key] = change(t, m[key], at[1:], to)
		return m
	case int:
		items, ok := in.([]any)
		if !ok || key >= len(items) {
			t.Fatalf("%v has no item %d", in, key)
		}
		items[key] = change(t, items[key], at[1:], to)
		return items
	}
	t.Fatalf("%v is no step", at[0])
	return nil
}

// env is a variable of a container; an old one of this name goes.
func env(name string, fields map[string]any) put {
	return func(old any) any {
		items, _ := old.([]any)
		items = slices.DeleteFunc(slices.Clone(items), func(e any) bool { return e.(map[string]any)["name"] == name })
		if fields == nil {
			return items
		}
		fields["name"] = name
		return append(items, fields)
	}
}

func value(v string) map[string]any { return map[string]any{"value": v} }

func added(item any) put {
	return func(old any) any {
		items, _ := old.([]any)
		return append(slices.Clone(items), item)
	}
}

// without leaves out the items with a name.
func without(name string) put {
	return func(old any) any {
		return slices.DeleteFunc(slices.Clone(old.([]any)), func(e any) bool { return e.(map[string]any)["name"] == name })
	}
}

const (
	agent   = "Deployment/mesh-agent-p"
	scaled  = "Deployment/mesh-agent-pautoscalehpa"
	hpa     = "HorizontalPodAutoscaler/mesh-agent-pautoscalehpa"
	keda    = "ScaledObject/mesh-agent-pautoscalekeda"
	zero    = "ScaledObject/mesh-agent-pautoscalekedascaletozero"
	daemons = "DaemonSet/mesh-agent-machine"
	routers = "Deployment/mesh-router"
	server  = "StatefulSet/nats"
)

// Each rule finds its fault: a good render is broken in one way, and the rule reports it.
func TestRulesFind(t *testing.T) {
	t.Parallel()
	k := tree(t)
	good := objects(t, k, combine(t, k, "nats", []string{"monitoring", "tool-egress", "clients", "indexes", "leafnodes", "gateway"}, "machines every-node"))
	if wrong := Problems(good, facts(t)); len(wrong) > 0 {
		t.Fatalf("it is not good to begin with: %v", wrong)
	}
	pod := path{"spec", "template", "spec"}
	in := func(more ...any) path { return append(slices.Clone(pod), more...) }
	main := func(more ...any) path { return append(in("containers", 0), more...) }
	spec := func(more ...any) path { return append(path{"spec"}, more...) }
	labels := path{"spec", "template", "metadata", "labels"}

	tried := map[string]bool{}
	for _, b := range []struct {
		rule, object string
		at           path
		to           any
		want         string
	}{
		{"type", agent, main("imagePullpolicy"), "Always", "unknown field"},
		{"type", agent, main("readinessprobe"), map[string]any{}, "unknown field"},
		{"type", agent, path{"kind"}, "Job", "no kind that these manifests may have"},
		{"type", agent, main("ports", 0, "containerPort"), "http", "cannot unmarshal string"},
		{"type", keda, spec("minReplicas"), 2.0, "unknown field"},
		{"type", keda, spec("triggers", 0, "metadata", "targetValue"), 5.6, "cannot unmarshal number"},
		{"type", "PodMonitor/toolmesh", spec("podMetricsEndpoint"), []any{}, "unknown field"},
		{"security", agent, main("securityContext", "privileged"), true, "privileged"},
		{"security", agent, main("securityContext", "allowPrivilegeEscalation"), true, "allowPrivilegeEscalation"},
		{"security", agent, main("securityContext", "capabilities", "drop"), remove{}, "unrestricted capabilities"},
		{"security", agent, main("securityContext", "capabilities", "add"), []any{"NET_BIND_SERVICE"}, "has the capabilities"},
		{"security", agent, in("securityContext", "runAsNonRoot"), false, "runAsNonRoot"},
		{"security", agent, in("securityContext", "runAsUser"), 0.0, "runAsUser"},
		{"security", agent, in("securityContext", "runAsGroup"), remove{}, "runAsGroup"},
		{"security", agent, in("securityContext", "seccompProfile"), remove{}, "seccomp"},
		{"security", agent, in("hostNetwork"), true, "host namespaces"},
		{"security", agent, main("securityContext", "readOnlyRootFilesystem"), false, "readOnlyRootFilesystem"},
		{"security", agent, main("securityContext", "runAsUser"), 1000.0, "another user"},
		{"security", routers, in("automountServiceAccountToken"), remove{}, "automountServiceAccountToken"},
		{"security", routers, in("enableServiceLinks"), true, "enableServiceLinks"},
		{"security", routers, in("serviceAccountName"), remove{}, "no service account"},
		{"volume", agent, in("volumes"), without("tmp"), "mounts the volume tmp, which is not there"},
		{"volume", agent, in("volumes"), added(map[string]any{"name": "socket", "hostPath": map[string]any{"path": "/run"}}), "folder of the machine"},
		{"volume", agent, in("volumes"), added(map[string]any{"name": "more", "emptyDir": map[string]any{}}), "no sizeLimit"},
		{"volume", agent, main("resources", "limits", "ephemeral-storage"), "4Gi", "the pod is evicted"},
		{"volume", agent, main("env"), env("HOME", value("/root-of-image")), "where nothing can be written"},
		{"volume", agent, main("env"), env("TMPDIR", nil), "TMPDIR is not set"},
		{"volume", agent, main("env"), env("MESH_ENVIRONMENTS", value("/tmp")), "not below the data folder"},
		{"volume", agent, main("env"), env("MESH_ENVIRONMENTS", value("/var/lib/toolmesh/shared")), "where nothing can be written"},
		{"selector", agent, append(labels[:len(labels):len(labels)], "pool"), "other", "does not find its own pods"},
		{"selector", agent, spec("selector", "matchLabels"), put(func(old any) any { delete(old.(map[string]any), "pool"); return old }), "finds the pods of"},
		{"selector", "Service/mesh-router", spec("selector", "app.kubernetes.io/name"), "router", "finds no pods"},
		{"selector", "PodDisruptionBudget/nats", spec("selector", "matchLabels", "app.kubernetes.io/name"), "natz", "finds no pods"},
		{"selector", "NetworkPolicy/nats", spec("ingress", 1, "from", 0, "podSelector", "matchLabels", "app.kubernetes.io/name"), "natz", "a peer's selector finds no pods"},
		{"selector", "NetworkPolicy/clients-to-nats", spec("podSelector", "matchLabels", "app.kubernetes.io/name"), "natz", "its selector finds no pods"},
		{"selector", "PodMonitor/toolmesh", spec("selector", "matchExpressions", 0, "values"), []any{"other"}, "finds no pods"},
		{"grace", agent, in("terminationGracePeriodSeconds"), 300.0, "is killed after 5m0s"},
		{"grace", agent, in("terminationGracePeriodSeconds"), remove{}, "is killed after 30s"},
		{"grace", agent, main("env"), env("MESH_DRAIN_TIMEOUT", nil), "a drain takes 30s, and a call may take 5m0s"},
		{"grace", agent, main("env"), env("MESH_MAX_TIMEOUT", nil), "a call may take 1h0m0s"},
		{"grace", agent, main("env"), env("MESH_DRAIN_TIMEOUT", value("10m")), "may take 10m10s to stop"},
		{"grace", agent, main("env"), env("MESH_DRAIN_TIMEOUT", value("soon")), "it is a duration"},
		{"grace", routers, in("terminationGracePeriodSeconds"), 10.0, "is killed after 10s"},
		{"grace", routers, main("lifecycle", "preStop", "sleep", "seconds"), 40.0, "may take"},
		{"grace", server, in("terminationGracePeriodSeconds"), 45.0, "is killed after 45s"},
		{"grace", server, main("lifecycle"), remove{}, "lame duck"},
		{"credentials", agent, main("env"), env("TOKEN", map[string]any{"valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "mesh-node", "key": "node.nk"}}}), "comes from a Secret"},
		{"credentials", agent, main("envFrom"), added(map[string]any{"secretRef": map[string]any{"name": "mesh-node"}}), "takes variables from the Secret"},
		{"credentials", agent, main("env"), env("MESH_NATS_URL", value("nats://me:secret@nats:4222")), "URL with credentials"},
		{"credentials", agent, main("volumeMounts"), added(map[string]any{"name": "keys", "mountPath": "/etc/key"}), "tools can read the Secret"},
		{"credentials", agent, main("env"), env("MESH_NATS_NKEY", value("/tmp/node.nk")), "no Secret has"},
		{"credentials", agent, main("env"), env("MESH_NATS_NKEY", value("/var/lib/toolmesh/keys/issuer.nk")), "no Secret has"},
		{"credentials", agent, in("volumes"), put(func(old any) any {
			return append(without("keys")(old).([]any), map[string]any{"name": "keys", "secret": map[string]any{"secretName": "mesh-node"}})
		}), "others may read"},
		{"credentials", agent, in("securityContext", "fsGroup"), remove{}, "others may read"},
		{"credentials", routers, in("volumes"), put(func(old any) any {
			return append(without("keys")(old).([]any), map[string]any{"name": "keys", "secret": map[string]any{"secretName": "mesh-node", "defaultMode": 0o440}})
		}), "MESH_AUTH_ISSUER is /var/lib/toolmesh/keys/issuer.nk, which no Secret has"},
		{"credentials", agent, in("volumes"), added(map[string]any{"name": "issuer", "secret": map[string]any{"secretName": "mesh-issuer"}}), "only routers have the issuer's key"},
		{"credentials", "ServiceAccount/nats", path{}, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "key", "namespace": "toolmesh"}, "stringData": map[string]any{"a": "b"}}, "not written into manifests"},
		{"reference", agent, main("envFrom", 0, "configMapRef", "name"), "settings", "ConfigMap/settings, which is neither"},
		{"reference", agent, in("serviceAccountName"), "agent", "ServiceAccount/agent, which is neither"},
		{"reference", agent, in("volumes", 0, "secret", "secretName"), "node", "Secret/node, which is neither"},
		{"reference", server, spec("serviceName"), "nats-peers", "Service/nats-peers, which is neither"},
		{"reference", "ConfigMap/mesh-settings", path{"metadata", "name"}, "nats-auth", "it is there twice"},
		{"port", "ConfigMap/mesh-settings", path{"data", "MESH_HTTP_LISTEN"}, ":8080", "MESH_HTTP_LISTEN is"},
		{"port", "ConfigMap/mesh-settings", path{"data", "MESH_HTTP_LISTEN"}, "127.0.0.1:9464", "MESH_HTTP_LISTEN is"},
		{"port", "ConfigMap/mesh-settings", path{"data", "MESH_NATS_URL"}, "nats://nats:4223", "a port that the Service does not have"},
		{"port", routers, main("env"), env("MESH_GATEWAY_LISTEN", value(":8421")), "MESH_GATEWAY_LISTEN is"},
		{"port", routers, main("env"), env("MESH_GATEWAY_LISTEN", nil), "MESH_GATEWAY_LISTEN is"},
		{"port", agent, main("readinessProbe", "httpGet", "port"), "web", "a probe asks the port web"},
		{"port", server, main("ports", 3, "containerPort"), 8223.0, "and in nats.conf 8222"},
		{"port", "Service/mesh-router", spec("ports", 0, "targetPort"), "metrics", "leads to metrics"},
		{"port", "Service/nats", spec("ports", 0, "port"), 4333.0, "is 4333 there and 4222"},
		{"port", server, main("ports", 0, "containerPort"), 7433.0, "and in nats.conf"},
		{"port", "PodMonitor/toolmesh", spec("podMetricsEndpoints", 0, "path"), "/prometheus", "docs/operations/metrics.md does not have"},
		{"port", "PodMonitor/toolmesh", spec("podMetricsEndpoints", 0, "port"), "metrics", "does not have"},
		{"port", "NetworkPolicy/monitoring-to-mesh", spec("ingress", 0, "ports", 0, "port"), 8080.0, "lets in to the port"},
		{"setting", agent, main("env"), env("MESH_SLOT", value("8")), "MESH_SLOT is no setting"},
		{"setting", routers, main("env"), env("MESH_SLOTS", value("8")), "MESH_SLOTS is no setting"},
		{"setting", "ConfigMap/mesh-settings", path{"data", "NATS_USER"}, "me", "NATS_USER is no setting"},
		{"setting", agent, main("env"), env("POD_POOL", nil), "set later, or not at all"},
		{"setting", agent, main("env"), env("MESH_LABELS", value("pool=default")), "not the pool of its pod"},
		{"setting", agent, main("env"), env("MESH_NATS_NKEY", nil), "has no key"},
		{"setting", agent, main("env"), env("MESH_SLOTS", value("many")), "MESH_SLOTS is"},
		{"setting", daemons, main("env"), env("MESH_NODE", value("machine")), "MESH_NODE is"},
		{"setting", "ConfigMap/mesh-settings", path{"data", "MESH_HTTP_LISTEN"}, remove{}, "MESH_HTTP_LISTEN is not set"},
		{"network", "NetworkPolicy/default-deny", spec("policyTypes"), []any{"Ingress"}, "denies all"},
		{"network", "NetworkPolicy/default-deny", spec("egress"), []any{map[string]any{}}, "denies all"},
		{"network", "NetworkPolicy/mesh-to-dns", spec("egress", 0, "ports"), []any{map[string]any{"port": 5353.0}}, "may not ask DNS"},
		{"network", "NetworkPolicy/mesh-to-nats", spec("egress", 0, "ports", 0, "port"), 4223.0, "may not reach NATS"},
		{"network", "NetworkPolicy/monitoring-to-mesh", spec("ingress", 0, "from", 0), map[string]any{"namespaceSelector": map[string]any{}}, "other than monitoring and keda"},
		{"network", "NetworkPolicy/monitoring-to-mesh", spec("ingress", 0, "from"), remove{}, "lets anybody"},
		{"network", "NetworkPolicy/ingress-to-gateway", spec("ingress", 0, "ports", 0, "port"), 9464.0, "other than to the port of the gateway"},
		{"ingress", "Ingress/mesh-gateway", spec("tls", 0, "hosts"), []any{"other.example.com"}, "has no certificate"},
		{"ingress", "Ingress/mesh-gateway", spec("rules", 0, "http", "paths", 0, "backend", "service", "name"), "mesh-router", "leads to no Service's port gateway"},
		{"network", "NetworkPolicy/leafnodes-to-nats", spec("ingress", 0, "ports", 0, "port"), 4222.0, "other than to the port for leaf nodes"},
		{"network", "NetworkPolicy/agents-to-internet", spec("egress", 0, "to", 0, "ipBlock", "except"), []any{"10.0.0.0/8"}, "which is private"},
		{"network", "NetworkPolicy/agents-to-internet", spec("egress", 0, "to"), remove{}, "out to everything"},
		{"network", "NetworkPolicy/agents-to-internet", spec("podSelector"), map[string]any{}, "lets StatefulSet/nats out"},
		{"security", "Deployment/mesh-indexes", in("automountServiceAccountToken"), true, "is not false"},
		{"autoscale", hpa, spec("metrics", 0, "external", "target", "averageValue"), "8", "its target is 8, want 5.6"},
		{"autoscale", hpa, spec("metrics", 0, "external", "target"), map[string]any{"type": "Value", "value": "5600m"}, "no AverageValue"},
		{"autoscale", hpa, spec("metrics", 0, "external", "metric", "selector", "matchLabels", "pool"), "p", `the pool "p"`},
		{"autoscale", hpa, spec("metrics", 0, "external", "metric", "name"), "wanted_slots", "its metric is wanted_slots"},
		{"autoscale", hpa, spec("minReplicas"), -1.0, "from -1"},
		{"autoscale", zero, spec("triggers", 0, "metadata", "targetValue"), "0.5", "brings 2 nodes"},
		{"autoscale", routers, main("env"), env("MESH_HELD_CALLS", value("0")), "shows no demand"},
		{"autoscale", hpa, spec("behavior", "scaleDown"), remove{}, "behavior"},
		{"autoscale", keda, spec("triggers", 0, "metadata", "targetValue"), "8", "its target is 8, want 5.6"},
		{"autoscale", keda, spec("triggers", 0, "metadata", "valueLocation"), "in_flight", "it reads in_flight"},
		{"autoscale", keda, spec("triggers", 0, "metadata", "url"), "http://mesh-router.toolmesh.svc:9464/demand/default", `the pool "default"`},
		{"autoscale", keda, spec("triggers", 0, "metadata", "url"), "http://mesh-router.toolmesh.svc:8080/demand/pautoscalekeda", "no demand of a router"},
		{"autoscale", keda, spec("triggers", 0, "type"), "cron", "another trigger"},
		{"autoscale", keda, spec("minReplicaCount"), 30.0, "from 30 to 20"},
		{"autoscale", keda, spec("advanced"), remove{}, "behavior"},
		{"autoscale", scaled, main("env"), env("MESH_SLOTS", value("16")), "70 % of 16 slots"},
	} {
		name := fmt.Sprintf("%s of %s at %v", b.rule, b.object, b.at)
		tried[b.rule] = true
		var all []map[string]any
		found := false
		for _, o := range good.Objects {
			raw := copyOf(o.Raw)
			if o.String() == b.object {
				raw, found = change(t, raw, b.at, b.to).(map[string]any), true
			}
			all = append(all, raw)
		}
		if !found {
			t.Errorf("%s: there is no %s", name, b.object)
			continue
		}
		problems := rules[b.rule](Decode(all), facts(t))
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, b.want) }) {
			t.Errorf("%s: want a complaint with %q, got %q", name, b.want, problems)
		}
	}
	for name := range rules {
		if !tried[name] {
			t.Errorf("the rule %s was not seen to find anything", name)
		}
	}
}

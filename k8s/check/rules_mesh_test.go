package check

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	appsv1 "k8s.io/api/apps/v1"
)

// given are the objects that the credentials of k8s/credentials create, and the Secrets that the components
// describe.
var given = map[string][]string{"Secret": {"mesh-node", "mesh-issuer", "mesh-admin", "nats-leafnodes"}, "ConfigMap": {"nats-auth"}}

func claimsOf(w Workload) (names []string) {
	if set, ok := w.Typed.(*appsv1.StatefulSet); ok {
		for _, claim := range set.Spec.VolumeClaimTemplates {
			names = append(names, claim.Name)
		}
	}
	return names
}

// policy and budget are named as objects are.
type policy struct {
	*Object
	*networkingv1.NetworkPolicy
}

func (p policy) String() string { return p.Object.String() }

func (p policy) peers() (all []networkingv1.NetworkPolicyPeer) {
	for _, in := range p.Spec.Ingress {
		all = append(all, in.From...)
	}
	for _, out := range p.Spec.Egress {
		all = append(all, out.To...)
	}
	return all
}

func policiesOf(s *Set) (all []policy) {
	for _, o := range s.Objects {
		if p, ok := o.Typed.(*networkingv1.NetworkPolicy); ok {
			all = append(all, policy{o, p})
		}
	}
	return all
}

type budget struct {
	*Object
	*policyv1.PodDisruptionBudget
}

func (b budget) String() string { return b.Object.String() }

func budgetsOf(s *Set) (all []budget) {
	for _, o := range s.Objects {
		if p, ok := o.Typed.(*policyv1.PodDisruptionBudget); ok {
			all = append(all, budget{o, p})
		}
	}
	return all
}

// referenceRule: every object that a pod names is in the render, or among the credentials.
func referenceRule(s *Set, _ *Facts) []string {
	var c complaints
	has := make(map[string]bool)
	for kind, names := range given {
		for _, name := range names {
			has[kind+"/"+name] = true
		}
	}
	for _, o := range s.Objects {
		if has[o.String()] {
			c.add(o, "it is there twice")
		}
		has[o.String()] = true
	}
	for _, w := range s.Workloads() {
		names := []string{"ServiceAccount/" + w.Pod.Spec.ServiceAccountName}
		volume := func(m *corev1.ConfigMapVolumeSource, secret *corev1.SecretVolumeSource, claim *corev1.PersistentVolumeClaimVolumeSource) {
			switch {
			case m != nil:
				names = append(names, "ConfigMap/"+m.Name)
			case secret != nil:
				names = append(names, "Secret/"+secret.SecretName)
			case claim != nil:
				names = append(names, "PersistentVolumeClaim/"+claim.ClaimName)
			}
		}
		for _, v := range w.Pod.Spec.Volumes {
			volume(v.ConfigMap, v.Secret, v.PersistentVolumeClaim)
			if v.Projected != nil {
				for _, source := range v.Projected.Sources {
					if source.ConfigMap != nil {
						names = append(names, "ConfigMap/"+source.ConfigMap.Name)
					}
					if source.Secret != nil {
						names = append(names, "Secret/"+source.Secret.Name)
					}
				}
			}
		}
		for _, container := range w.Containers() {
			for _, from := range container.EnvFrom {
				if from.ConfigMapRef != nil {
					names = append(names, "ConfigMap/"+from.ConfigMapRef.Name)
				}
			}
		}
		if set, ok := w.Typed.(*appsv1.StatefulSet); ok {
			names = append(names, "Service/"+set.Spec.ServiceName)
		}
		for _, name := range names {
			if !has[name] {
				c.add(w, "it names %s, which is neither here nor among the credentials", name)
			}
		}
	}
	return c
}

// portRule: ports agree, of the process, its container, probes, Services, policies,
// monitors and NATS's configuration.
func portRule(s *Set, f *Facts) []string {
	var c complaints
	for _, w := range s.Workloads() {
		for _, container := range w.Pod.Spec.Containers {
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.ReadinessProbe, container.LivenessProbe} {
				if probe == nil || probe.HTTPGet == nil {
					continue
				}
				want := "http"
				if w.Is("nats") {
					want = "monitor"
				}
				if got := probe.HTTPGet.Port.String(); got != want || portOf(w, got) == 0 {
					c.add(w, "%s: a probe asks the port %s, want %s, which the container has to have", container.Name, got, want)
				}
			}
			if w.Is("nats") {
				for name, port := range f.Routes {
					if got := portOf(w, name); got != port && (name != "leafnodes" || got != 0) { // which is a component's
						c.add(w, "%s: the port %s is %d, and in nats.conf %d", container.Name, name, portOf(w, name), port)
					}
				}
				continue
			}
			listen := s.settingsOf(container)["MESH_HTTP_LISTEN"]
			if want := fmt.Sprintf(":%d", portOf(w, "http")); listen != want {
				c.add(w, "%s: MESH_HTTP_LISTEN is %q, and its port http %s", container.Name, listen, want)
			}
			if listen, port := s.settingsOf(container)["MESH_GATEWAY_LISTEN"], portOf(w, "gateway"); port != 0 && listen != fmt.Sprintf(":%d", port) || port == 0 && listen != "" {
				c.add(w, "%s: MESH_GATEWAY_LISTEN is %q, and its port gateway %d", container.Name, listen, port)
			}
		}
	}
	for _, o := range s.Objects {
		switch t := o.Typed.(type) {
		case *corev1.Service:
			for _, p := range t.Spec.Ports {
				for _, w := range s.Workloads() {
					if selects(t, w) && portOf(w, p.TargetPort.String()) == 0 {
						c.add(o, "the port %s leads to %s, which %s does not have", p.Name, p.TargetPort.String(), w)
					}
					if selects(t, w) && portOf(w, p.TargetPort.String()) != int(p.Port) {
						c.add(o, "the port %s is %d there and %d in %s", p.Name, p.Port, portOf(w, p.TargetPort.String()), w)
					}
				}
			}
		case *PodMonitor:
			for _, e := range t.Spec.PodMetricsEndpoints {
				if !f.Paths[e.Path] {
					c.add(o, "it asks %s, which docs/operations/metrics.md does not have", e.Path)
				}
				for _, w := range s.Workloads() {
					if matches(&t.Spec.Selector, w.Pod.Labels) && portOf(w, e.Port) == 0 {
						c.add(o, "it asks the port %s, which %s does not have", e.Port, w)
					}
				}
			}
		}
	}
	for _, p := range policiesOf(s) {
		for _, in := range p.Spec.Ingress {
			for _, port := range in.Ports {
				for _, w := range s.Workloads() {
					if matches(&p.Spec.PodSelector, w.Pod.Labels) && (port.Port == nil || portOf(w, port.Port.String()) == 0) {
						c.add(p, "it lets in to the port %v, which %s does not have", port.Port, w)
					}
				}
			}
		}
	}
	for name, address := range natsAddresses(s) {
		u, err := url.Parse(address)
		if err != nil {
			c = append(c, fmt.Sprintf("%s: MESH_NATS_URL: %v", name, err))
			continue
		}
		for _, service := range of[corev1.Service](s) {
			if service.Name == u.Hostname() && !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return strconv.Itoa(int(p.Port)) == u.Port() }) {
				c = append(c, fmt.Sprintf("%s: MESH_NATS_URL is %s, a port that the Service does not have", name, address))
			}
		}
	}
	return c
}

func selects(service *corev1.Service, w Workload) bool {
	for k, v := range service.Spec.Selector {
		if w.Pod.Labels[k] != v {
			return false
		}
	}
	return true
}

func natsAddresses(s *Set) map[string]string {
	all := make(map[string]string)
	for _, w := range s.Workloads() {
		for _, container := range w.Pod.Spec.Containers {
			if !w.Is("nats") {
				all[w.String()] = s.settingsOf(container)["MESH_NATS_URL"]
			}
		}
	}
	return all
}

var open = regexp.MustCompile(`\$\([A-Za-z_]+\)`)

// settingRule: a variable that a manifest sets is one that its program reads, and says
// what the rest of the manifest says.
func settingRule(s *Set, f *Facts) []string {
	var c complaints
	for _, w := range s.Workloads() {
		known, ours := f.Settings[w.Pod.Labels["app.kubernetes.io/name"]]
		for _, container := range w.Pod.Spec.Containers {
			values := s.settingsOf(container)
			for name, value := range values {
				if ours && (strings.HasPrefix(name, "MESH_") || strings.HasPrefix(name, "NATS_")) && !known[name] {
					c.add(w, "%s: %s is no setting of it", container.Name, name)
				}
				if open.MatchString(value) {
					c.add(w, "%s: %s is %q: the variable in it is set later, or not at all", container.Name, name, value)
				}
			}
			if !ours {
				continue
			}
			for _, name := range []string{"MESH_NATS_URL", "MESH_HTTP_LISTEN"} {
				if values[name] == "" {
					c.add(w, "%s: %s is not set", container.Name, name)
				}
			}
			if values["MESH_NATS_NKEY"] == "" && values["MESH_NATS_CREDS"] == "" {
				c.add(w, "%s: it has no key", container.Name)
			}
			if !w.Is("mesh-agent") {
				continue
			}
			if w.Pod.Labels["pool"] == "" || values["MESH_LABELS"] != "pool=<metadata.labels['pool']>" {
				c.add(w, "%s: its node's labels are %q: not the pool of its pod", container.Name, values["MESH_LABELS"])
			}
			want := "<metadata.name>"
			if w.Kind() == "DaemonSet" {
				want = "<spec.nodeName>"
			}
			if values["MESH_NODE"] != want {
				c.add(w, "%s: MESH_NODE is %q, want %s", container.Name, values["MESH_NODE"], want)
			}
			if n, err := strconv.Atoi(values["MESH_SLOTS"]); err != nil || n < 1 {
				c.add(w, "%s: MESH_SLOTS is %q", container.Name, values["MESH_SLOTS"])
			}
		}
	}
	return c
}

// networkRule: everything is denied that is not allowed, agents reach NATS and DNS and at
// most public addresses, and the ports of routers and agents are open to monitoring alone.
func networkRule(s *Set, _ *Facts) []string {
	var c complaints
	policies := policiesOf(s)
	if !slices.ContainsFunc(policies, func(p policy) bool {
		return len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions) == 0 && len(p.Spec.Ingress)+len(p.Spec.Egress) == 0 && len(p.Spec.PolicyTypes) == 2
	}) {
		c = append(c, "there is no policy that denies all in both directions")
	}
	for _, w := range s.Workloads() {
		dns, nats := false, false
		for _, p := range policies {
			if !matches(&p.Spec.PodSelector, w.Pod.Labels) {
				continue
			}
			for _, in := range p.Spec.Ingress {
				if len(in.From) == 0 || len(in.Ports) == 0 {
					c.add(p, "it lets anybody, or to any port, of %s", w)
				}
				for _, from := range in.From {
					if from.NamespaceSelector != nil && from.NamespaceSelector.MatchLabels["toolmesh-gateway"] == "allowed" {
						if slices.ContainsFunc(in.Ports, func(port networkingv1.NetworkPolicyPort) bool {
							return portOf(w, port.Port.String()) != portOf(w, "gateway")
						}) {
							c.add(p, "it lets the Ingress to %s, other than to the port of the gateway", w)
						}
						continue
					}
					if from.NamespaceSelector != nil && !w.Is("nats") && strings.Join(names(from), ",") != "monitoring,keda" {
						c.add(p, "it lets namespaces to %s other than monitoring and keda", w)
					}
					if from.NamespaceSelector == nil && !w.Is("nats") {
						c.add(p, "it lets pods to %s", w)
					}
					if from.IPBlock != nil && slices.ContainsFunc(in.Ports, func(port networkingv1.NetworkPolicyPort) bool {
						return portOf(w, port.Port.String()) != portOf(w, "leafnodes")
					}) {
						c.add(p, "it lets addresses to %s, other than to the port for leaf nodes", w)
					}
				}
			}
			for _, out := range p.Spec.Egress {
				ports := make([]string, 0, len(out.Ports))
				for _, port := range out.Ports {
					ports = append(ports, port.Port.String())
				}
				switch all := strings.Join(ports, ","); {
				case all == "53,53":
					dns = true
				case all == "4222":
					nats = true
				case all == "6222" && w.Is("nats"):
				default:
					c = append(c, internet(p, out, w)...)
				}
			}
		}
		if !dns {
			c.add(w, "it may not ask DNS")
		}
		if !nats && !w.Is("nats") {
			c.add(w, "it may not reach NATS")
		}
	}
	return c
}

// ingressRule: every backend of an Ingress exists, and each of its hosts uses TLS, as tokens travel there.
func ingressRule(s *Set, _ *Facts) []string {
	var c complaints
	for _, o := range s.Objects {
		ingress, ok := o.Typed.(*networkingv1.Ingress)
		if !ok {
			continue
		}
		for _, rule := range ingress.Spec.Rules {
			if !slices.ContainsFunc(ingress.Spec.TLS, func(t networkingv1.IngressTLS) bool { return t.SecretName != "" && slices.Contains(t.Hosts, rule.Host) }) {
				c.add(o, "the host %q has no certificate", rule.Host)
			}
			if rule.HTTP == nil {
				continue
			}
			for _, path := range rule.HTTP.Paths {
				to := path.Backend.Service
				if to == nil || !slices.ContainsFunc(of[corev1.Service](s), func(service *corev1.Service) bool {
					return service.Name == to.Name && slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == to.Port.Name && p.Name == "gateway" })
				}) {
					c.add(o, "%s leads to no Service's port gateway", path.Path)
				}
			}
		}
	}
	return c
}

func names(peer networkingv1.NetworkPolicyPeer) []string {
	for _, e := range peer.NamespaceSelector.MatchExpressions {
		if e.Key == "kubernetes.io/metadata.name" {
			return e.Values
		}
	}
	return nil
}

// internet: a way out to all ports is one to public addresses, and for agents.
func internet(p policy, out networkingv1.NetworkPolicyEgressRule, w Workload) (c complaints) {
	if !w.Is("mesh-agent") {
		c.add(p, "it lets %s out", w)
	}
	if len(out.To) == 0 {
		c.add(p, "it lets %s out to everything", w)
	}
	for _, to := range out.To {
		if to.IPBlock == nil {
			c.add(p, "it lets %s out to other pods", w)
			continue
		}
		for _, private := range []string{"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} {
			if to.IPBlock.CIDR == "0.0.0.0/0" && !slices.Contains(to.IPBlock.Except, private) {
				c.add(p, "it lets %s out to %s, which is private", w, private)
			}
		}
		if to.IPBlock.CIDR == "::/0" {
			c.add(p, "it lets %s out to private addresses", w)
		}
	}
	return c
}

// autoscaler is an HPA or a ScaledObject, as far as they say the same.
type autoscaler struct {
	*Object
	target   string // as Object.String
	pool     string // the pool of the demand
	perNode  float64
	average  bool // it divides the demand by perNode
	least    int32
	most     int32
	behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
	wrong    []string
}

func autoscalersOf(s *Set) (all []autoscaler) {
	for _, o := range s.Objects {
		switch t := o.Typed.(type) {
		case *autoscalingv2.HorizontalPodAutoscaler:
			a := autoscaler{Object: o, target: t.Spec.ScaleTargetRef.Kind + "/" + t.Spec.ScaleTargetRef.Name, most: t.Spec.MaxReplicas, behavior: t.Spec.Behavior, least: 1}
			if t.Spec.MinReplicas != nil {
				a.least = *t.Spec.MinReplicas
			}
			if len(t.Spec.Metrics) != 1 || t.Spec.Metrics[0].External == nil {
				a.wrong = append(a.wrong, "it has another metric than one external one")
			} else {
				e := t.Spec.Metrics[0].External
				if e.Metric.Name != "toolmesh_pool_wanted_slots" {
					a.wrong = append(a.wrong, "its metric is "+e.Metric.Name)
				}
				if e.Metric.Selector != nil {
					a.pool = e.Metric.Selector.MatchLabels["pool"]
				}
				a.average = e.Target.Type == autoscalingv2.AverageValueMetricType
				if e.Target.AverageValue != nil {
					a.perNode = e.Target.AverageValue.AsApproximateFloat64()
				}
			}
			all = append(all, a)
		case *ScaledObject:
			a := autoscaler{Object: o, target: "Deployment/" + t.Spec.ScaleTargetRef.Name, behavior: t.Spec.Advanced.HorizontalPodAutoscalerConfig.Behavior}
			if t.Spec.MinReplicaCount != nil && t.Spec.MaxReplicaCount != nil {
				a.least, a.most = *t.Spec.MinReplicaCount, *t.Spec.MaxReplicaCount
			}
			if len(t.Spec.Triggers) != 1 || t.Spec.Triggers[0].Type != "metrics-api" {
				a.wrong = append(a.wrong, "it has another trigger than one metrics-api")
			} else {
				trigger := t.Spec.Triggers[0]
				a.average = trigger.MetricType == autoscalingv2.AverageValueMetricType
				if trigger.Metadata["valueLocation"] != "wanted_slots" {
					a.wrong = append(a.wrong, "it reads "+trigger.Metadata["valueLocation"])
				}
				// As KEDA does: a number, made a quantity of thousandths.
				perNode, err := strconv.ParseFloat(trigger.Metadata["targetValue"], 64)
				if err != nil {
					a.wrong = append(a.wrong, "its targetValue is no number")
				}
				q := resource.NewMilliQuantity(int64(perNode*1000), resource.DecimalSI)
				a.perNode = q.AsApproximateFloat64()
				a.pool, err = poolOf(s, trigger.Metadata["url"])
				if err != nil {
					a.wrong = append(a.wrong, err.Error())
				}
			}
			all = append(all, a)
		}
	}
	return all
}

// poolOf reads which pool's demand a URL asks for, of a Service in the render.
func poolOf(s *Set, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	pool, ok := strings.CutPrefix(u.Path, "/demand/")
	for _, service := range of[corev1.Service](s) {
		for _, p := range service.Spec.Ports {
			if ok && u.Scheme == "http" && u.Host == fmt.Sprintf("%s.%s.svc:%d", service.Name, service.Namespace, p.Port) && service.Spec.Selector["app.kubernetes.io/name"] == "mesh-router" {
				return pool, nil
			}
		}
	}
	return "", fmt.Errorf("it asks %s, which is no demand of a router here", address)
}

// nodes returns the number of pods for a demand, within the autoscaler's bounds: the ratio, rounded up.
// The controller leaves a size alone that is off by 10 % or less.
func (a autoscaler) nodes(wanted int) int {
	return int(math.Ceil(float64(wanted)/a.perNode - 1e-9))
}

// autoscaleRule: an autoscaler asks for the demand of its own pool, and aims at 70 % of
// the slots of its nodes.
func autoscaleRule(s *Set, f *Facts) []string {
	var c complaints
	for _, a := range autoscalersOf(s) {
		for _, w := range a.wrong {
			c.add(a, "%s", w)
		}
		if !a.average {
			c.add(a, "its metric is no AverageValue: the demand is not divided by the nodes")
		}
		if a.least < 0 || a.most <= a.least {
			c.add(a, "it scales from %d to %d", a.least, a.most)
		}
		if a.least == 0 && !slices.ContainsFunc(s.Workloads(), func(w Workload) bool {
			return w.Is("mesh-router") && cmp.Or(s.settingsOf(w.Pod.Spec.Containers[0])["MESH_HELD_CALLS"], f.Defaults["MESH_HELD_CALLS"]) != "0"
		}) {
			c.add(a, "it scales to zero, and no call waits for a node at a router: the pool shows no demand then")
		}
		if a.least == 0 && a.nodes(1) != 1 {
			c.add(a, "one call that waits brings %d nodes, want 1", a.nodes(1))
		}
		if b := a.behavior; b == nil || b.ScaleUp == nil || len(b.ScaleUp.Policies) < 2 || b.ScaleDown == nil || b.ScaleDown.StabilizationWindowSeconds == nil || *b.ScaleDown.StabilizationWindowSeconds < 60 || len(b.ScaleDown.Policies) == 0 {
			c.add(a, "its behavior does not say how fast it scales up, and down after a minute at least")
		}
		for _, w := range s.Workloads() {
			if w.String() != a.target {
				continue
			}
			if w.Pod.Labels["pool"] != a.pool {
				c.add(a, "it asks for the demand of the pool %q, and scales %q", a.pool, w.Pod.Labels["pool"])
			}
			slots, _ := strconv.Atoi(s.settingsOf(w.Pod.Spec.Containers[0])["MESH_SLOTS"])
			if want := float64(slots) * DemandShare; math.Abs(want-a.perNode) > 0.001 {
				c.add(a, "its target is %v, want %v: 70 %% of %d slots", a.perNode, want, slots)
			}
		}
	}
	return c
}

package check

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	psaapi "k8s.io/pod-security-admission/api"
	psa "k8s.io/pod-security-admission/policy"
)

// rule looks for one kind of mistake, and says each that it finds.
type rule func(s *Set, f *Facts) []string

// rules are all of them, by the name that complaints begin with.
var rules = map[string]rule{
	"type":        func(s *Set, _ *Facts) []string { return s.Wrong },
	"security":    securityRule,
	"volume":      volumeRule,
	"selector":    selectorRule,
	"grace":       graceRule,
	"credentials": credentialsRule,
	"reference":   referenceRule,
	"port":        portRule,
	"setting":     settingRule,
	"network":     networkRule,
	"ingress":     ingressRule,
	"autoscale":   autoscaleRule,
}

// Problems runs all rules.
func Problems(s *Set, f *Facts) (all []string) {
	for name, r := range rules {
		for _, problem := range r(s, f) {
			all = append(all, name+": "+problem)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// complaints collects the findings of a rule.
type complaints []string

func (c *complaints) add(o fmt.Stringer, format string, args ...any) {
	*c = append(*c, o.String()+": "+fmt.Sprintf(format, args...))
}

var digest = regexp.MustCompile(`^[a-z0-9./:-]+@sha256:[0-9a-f]{64}$`)

// Digests says which images are not named by their digest.
func Digests(s *Set) []string {
	var c complaints
	for _, w := range s.Workloads() {
		for _, container := range w.Containers() {
			if !digest.MatchString(container.Image) {
				c.add(w, "%s: the image %q has no digest", container.Name, container.Image)
			}
		}
	}
	return c
}

// securityRule: what the API server's own check of the restricted profile says, and
// what we ask beyond it.
func securityRule(s *Set, _ *Facts) []string {
	var c complaints
	evaluator, err := psa.NewEvaluator(psa.DefaultChecks(), nil)
	if err != nil {
		return []string{err.Error()}
	}
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	for _, w := range s.Workloads() {
		pod := w.Pod.Spec
		for _, result := range evaluator.EvaluatePod(restricted, &w.Pod.ObjectMeta, &pod) {
			if !result.Allowed {
				c.add(w, "the restricted profile refuses it: %s (%s)", result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			c.add(w, "automountServiceAccountToken is not false")
		}
		if pod.ServiceAccountName == "" || pod.ServiceAccountName == "default" {
			c.add(w, "has no service account of its own")
		}
		if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			c.add(w, "enableServiceLinks is not false")
		}
		if sc := pod.SecurityContext; sc == nil || sc.RunAsUser == nil || *sc.RunAsUser != 65532 || sc.RunAsGroup == nil || *sc.RunAsGroup != 65532 || sc.FSGroup == nil || *sc.FSGroup != 65532 {
			c.add(w, "runAsUser, runAsGroup and fsGroup are not 65532")
		}
		for _, container := range w.Containers() {
			sc := container.SecurityContext
			if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem {
				c.add(w, "%s: readOnlyRootFilesystem is not true", container.Name)
			}
			if sc != nil && (sc.RunAsUser != nil || sc.RunAsGroup != nil) {
				c.add(w, "%s: is another user than its pod", container.Name)
			}
			if sc != nil && sc.Capabilities != nil && len(sc.Capabilities.Add) > 0 {
				c.add(w, "%s: has the capabilities %v", container.Name, sc.Capabilities.Add)
			}
		}
	}
	return c
}

// volumeRule: each mount has its volume, temporary ones are bounded, together by what the
// pod may use, and the folders that a process writes are on one.
func volumeRule(s *Set, _ *Facts) []string {
	var c complaints
	for _, w := range s.Workloads() {
		sum, volumes := new(resource.Quantity), map[string]corev1.Volume{}
		for _, v := range w.Pod.Spec.Volumes {
			volumes[v.Name] = v
			if v.HostPath != nil {
				c.add(w, "the volume %s is a folder of the machine", v.Name)
			}
			if v.EmptyDir == nil {
				continue
			}
			if v.EmptyDir.SizeLimit == nil {
				c.add(w, "the volume %s has no sizeLimit", v.Name)
			} else if v.EmptyDir.Medium != corev1.StorageMediumMemory {
				sum.Add(*v.EmptyDir.SizeLimit)
			}
		}
		for _, claim := range claimsOf(w) {
			volumes[claim] = corev1.Volume{Name: claim}
		}
		for _, container := range w.Containers() {
			for _, m := range container.VolumeMounts {
				if _, ok := volumes[m.Name]; !ok {
					c.add(w, "%s: mounts the volume %s, which is not there", container.Name, m.Name)
				}
			}
		}
		for _, container := range w.Pod.Spec.Containers {
			if limit := container.Resources.Limits.StorageEphemeral(); len(w.Pod.Spec.Containers) == 1 && limit.Cmp(*sum) < 0 {
				c.add(w, "its temporary volumes hold %s, and with %s the pod is evicted", sum, limit)
			}
			values := s.settingsOf(container)
			for _, name := range []string{"HOME", "TMPDIR", "MESH_DATA_DIR", "MESH_ENVIRONMENTS"} {
				folder, set := values[name]
				if name == "MESH_ENVIRONMENTS" {
					if set && !strings.HasPrefix(folder, values["MESH_DATA_DIR"]+"/") {
						c.add(w, "%s: %s is %s, which is not below the data folder, and the agent refuses it", container.Name, name, folder)
					}
				} else if !set && w.Is("mesh-agent") {
					c.add(w, "%s: %s is not set, and the image's own is read-only", container.Name, name)
				}
				if set && !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == folder && !m.ReadOnly && m.SubPath == "" }) {
					c.add(w, "%s: %s is %s, where nothing can be written", container.Name, name, folder)
				}
			}
		}
	}
	return c
}

// selectorRule: selectors find the pods of their own template, and no two workloads find
// each other's; what selects pods finds some.
func selectorRule(s *Set, _ *Facts) []string {
	var c complaints
	workloads := s.Workloads()
	for _, w := range workloads {
		for _, other := range workloads {
			finds := matches(w.Selector, other.Pod.Labels)
			switch {
			case w.Object == other.Object && !finds:
				c.add(w, "its selector does not find its own pods")
			case w.Object != other.Object && finds:
				c.add(w, "its selector finds the pods of %s", other)
			}
		}
	}
	some := func(o fmt.Stringer, what string, selector *metav1.LabelSelector) {
		if !slices.ContainsFunc(workloads, func(w Workload) bool { return matches(selector, w.Pod.Labels) }) {
			c.add(o, "%s finds no pods", what)
		}
	}
	for _, o := range s.Objects {
		switch t := o.Typed.(type) {
		case *corev1.Service:
			some(o, "its selector", &metav1.LabelSelector{MatchLabels: t.Spec.Selector})
		case *PodMonitor:
			some(o, "its selector", &t.Spec.Selector)
		}
	}
	for _, p := range policiesOf(s) {
		some(p, "its selector", &p.Spec.PodSelector)
		for _, peer := range p.peers() {
			// Peers of other namespaces are not in a render.
			if peer.PodSelector != nil && peer.NamespaceSelector == nil {
				some(p, "a peer's selector", peer.PodSelector)
			}
		}
	}
	for _, p := range budgetsOf(s) {
		some(p, "its selector", p.Spec.Selector)
	}
	return c
}

func matches(selector *metav1.LabelSelector, of map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(of))
}

// leaving is what a process needs beyond the time that it gives its calls: for the
// announcement, handlers that do not return, and the last writes.
const leaving = 10 * time.Second

// graceRule: a pod has the time that its program takes to stop.
func graceRule(s *Set, f *Facts) []string {
	var c complaints
	for _, w := range s.Workloads() {
		need := leaving
		switch {
		case w.Is("nats"):
			need += f.LameDuck
		case w.Is("mesh-agent"):
			for _, container := range w.Pod.Spec.Containers {
				values := s.settingsOf(container)
				drain, err1 := f.duration(values, "MESH_DRAIN_TIMEOUT")
				longest, err2 := f.duration(values, "MESH_MAX_TIMEOUT")
				if err := errors.Join(err1, err2); err != nil {
					c.add(w, "%v", err)
				}
				if drain < longest {
					c.add(w, "%s: a drain takes %v, and a call may take %v", container.Name, drain, longest)
				}
				need += drain
			}
		}
		for _, container := range w.Pod.Spec.Containers {
			stop := container.Lifecycle
			if stop != nil && stop.PreStop != nil && stop.PreStop.Sleep != nil {
				need += time.Duration(stop.PreStop.Sleep.Seconds) * time.Second
			}
			if w.Is("nats") && (stop == nil || stop.PreStop == nil || stop.PreStop.Exec == nil || !slices.ContainsFunc(stop.PreStop.Exec.Command, func(arg string) bool { return strings.HasPrefix(arg, "-sl=ldm=") })) {
				c.add(w, "it does not go into lame duck mode before it stops")
			}
		}
		grace := 30 * time.Second
		if g := w.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
			grace = time.Duration(*g) * time.Second
		}
		if grace < need {
			c.add(w, "it is killed after %v, and may take %v to stop", grace, need)
		}
	}
	return c
}

// secretsOf are the volumes of a pod that hold Secrets, with the mode of their files and
// the names of the Secrets.
func secretsOf(w Workload) map[string]secretVolume {
	found := make(map[string]secretVolume)
	for _, v := range w.Pod.Spec.Volumes {
		switch {
		case v.Secret != nil:
			found[v.Name] = secretVolume{v.Secret.DefaultMode, []string{v.Secret.SecretName}}
		case v.Projected != nil:
			of := secretVolume{mode: v.Projected.DefaultMode}
			for _, source := range v.Projected.Sources {
				if source.Secret != nil {
					of.names = append(of.names, source.Secret.Name)
				}
			}
			if of.names != nil {
				found[v.Name] = of
			}
		}
	}
	return found
}

type secretVolume struct {
	mode  *int32 // nil: 0644
	names []string
}

// keyMode is what files of keys have: with fsGroup they are root's, and the process reads
// them as their group. One that anybody may read is refused by the process.
const keyMode = 0o440

// credentialsRule: keys come by volumes of Secrets, as files that nobody else may read, and
// where tools run they lie where tools cannot read them.
func credentialsRule(s *Set, _ *Facts) []string {
	var c complaints
	for _, secret := range of[corev1.Secret](s) {
		c = append(c, fmt.Sprintf("Secret/%s: keys are not written into manifests", secret.Name))
	}
	for _, w := range s.Workloads() {
		secrets := secretsOf(w)
		for name, v := range secrets {
			if v.mode == nil || *v.mode != keyMode || w.Pod.Spec.SecurityContext == nil || w.Pod.Spec.SecurityContext.FSGroup == nil {
				c.add(w, "the files of the volume %s have another mode than 0440, or the pod has no fsGroup: the process refuses keys that others may read", name)
			}
			if slices.Contains(v.names, "mesh-issuer") && !w.Is("mesh-router") {
				c.add(w, "only routers have the issuer's key")
			}
			if slices.Contains(v.names, "mesh-admin") && !w.Is("mesh-indexes") {
				c.add(w, "only the router that installs has the administrator's key")
			}
		}
		for _, container := range w.Containers() {
			for _, from := range container.EnvFrom {
				if from.SecretRef != nil {
					c.add(w, "%s: takes variables from the Secret %s", container.Name, from.SecretRef.Name)
				}
			}
			for _, e := range container.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					c.add(w, "%s: %s comes from a Secret", container.Name, e.Name)
				}
			}
			values := s.settingsOf(container)
			kept := values["MESH_DATA_DIR"] + "/keys"
			for _, m := range container.VolumeMounts {
				if _, secret := secrets[m.Name]; secret && w.Is("mesh-agent") && m.MountPath != kept {
					c.add(w, "%s: tools can read the Secret that is mounted at %s", container.Name, m.MountPath)
				}
			}
			for name, value := range values {
				if strings.Contains(value, "://") && strings.Contains(value, "@") {
					c.add(w, "%s: %s is a URL with credentials", container.Name, name)
				}
				if !slices.Contains([]string{"MESH_NATS_NKEY", "MESH_NATS_CREDS", "MESH_AUTH_ISSUER"}, name) {
					continue
				}
				at := strings.LastIndex(value, "/") + 1
				dir, file := value[:at], value[at:]
				if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
					return m.MountPath+"/" == dir && m.ReadOnly && slices.ContainsFunc(secrets[m.Name].names, func(secret string) bool {
						return slices.Contains(given["Secret"], secret) && keyFiles[secret] == file
					})
				}) {
					c.add(w, "%s: %s is %s, which no Secret has that is mounted there read-only", container.Name, name, value)
				}
			}
		}
	}
	return c
}

// keyFiles are the mesh's keys in the Secrets that k8s/credentials makes, and in the one that components/indexes says how to make.
var keyFiles = map[string]string{"mesh-node": "node.nk", "mesh-issuer": "issuer.nk", "mesh-admin": "admin.nk"}

// portOf resolves a port of a pod by name or number; 0 if there is none.
func portOf(w Workload, port string) int {
	for _, container := range w.Pod.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == port || strconv.Itoa(int(p.ContainerPort)) == port {
				return int(p.ContainerPort)
			}
		}
	}
	return 0
}

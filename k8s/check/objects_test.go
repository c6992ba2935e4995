package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Object is one object of a render: as it is written, and read into its type.
type Object struct {
	Raw   map[string]any
	Typed any // a pointer to a type of k8s.io/api, or to one of this file
}

// Kind, Name and Namespace are the object's own.
func (o *Object) Kind() string      { return text(o.Raw, "kind") }
func (o *Object) Name() string      { return text(o.Raw, "metadata", "name") }
func (o *Object) Namespace() string { return text(o.Raw, "metadata", "namespace") }

// String is how complaints name the object.
func (o *Object) String() string { return o.Kind() + "/" + o.Name() }

func text(v map[string]any, path ...string) string {
	var at any = v
	for _, key := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = m[key]
	}
	s, _ := at.(string)
	return s
}

// Set is a render.
type Set struct {
	Objects []*Object
	Wrong   []string // texts that could not be read into their type
}

// ScaledObject has the used fields of KEDA's type.
type ScaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		PollingInterval *int32 `json:"pollingInterval"`
		CooldownPeriod  *int32 `json:"cooldownPeriod"`
		MinReplicaCount *int32 `json:"minReplicaCount"`
		MaxReplicaCount *int32 `json:"maxReplicaCount"`
		Triggers        []struct {
			Type       string                         `json:"type"`
			MetricType autoscalingv2.MetricTargetType `json:"metricType"`
			Metadata   map[string]string              `json:"metadata"`
		} `json:"triggers"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
	} `json:"spec"`
}

// PodMonitor has the used fields of the Prometheus operator's type.
type PodMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// types are all kinds that the manifests may have. Another one is a complaint: nothing
// of ours needs roles, jobs, webhooks or definitions of kinds.
var types = map[string]func() any{
	"v1/Namespace":                           func() any { return new(corev1.Namespace) },
	"v1/ConfigMap":                           func() any { return new(corev1.ConfigMap) },
	"v1/Secret":                              func() any { return new(corev1.Secret) },
	"v1/Service":                             func() any { return new(corev1.Service) },
	"v1/ServiceAccount":                      func() any { return new(corev1.ServiceAccount) },
	"v1/PersistentVolumeClaim":               func() any { return new(corev1.PersistentVolumeClaim) },
	"apps/v1/Deployment":                     func() any { return new(appsv1.Deployment) },
	"apps/v1/DaemonSet":                      func() any { return new(appsv1.DaemonSet) },
	"apps/v1/StatefulSet":                    func() any { return new(appsv1.StatefulSet) },
	"autoscaling/v2/HorizontalPodAutoscaler": func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1/NetworkPolicy":     func() any { return new(networkingv1.NetworkPolicy) },
	"networking.k8s.io/v1/Ingress":           func() any { return new(networkingv1.Ingress) },
	"policy/v1/PodDisruptionBudget":          func() any { return new(policyv1.PodDisruptionBudget) },
	"keda.sh/v1alpha1/ScaledObject":          func() any { return new(ScaledObject) },
	"monitoring.coreos.com/v1/PodMonitor":    func() any { return new(PodMonitor) },
}

// Parse reads the objects of a render.
func Parse(rendered []byte) (*Set, error) {
	var all []map[string]any
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return Decode(all), nil
		} else if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		raw := make(map[string]any)
		if err := yaml.UnmarshalStrict(doc, &raw); err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
}

// Decode reads objects into their types, strictly: an unknown, a repeated and a
// misspelt field are complaints, in another case, too.
func Decode(all []map[string]any) *Set {
	s := &Set{}
	for _, raw := range all {
		o := &Object{Raw: raw}
		s.Objects = append(s.Objects, o)
		kind := text(raw, "apiVersion") + "/" + o.Kind()
		make, ok := types[kind]
		if !ok {
			s.Wrong = append(s.Wrong, fmt.Sprintf("%s: %s is no kind that these manifests may have", o, kind))
			continue
		}
		data, err := json.Marshal(raw)
		if err != nil {
			s.Wrong = append(s.Wrong, fmt.Sprintf("%s: %v", o, err))
			continue
		}
		o.Typed = make()
		wrong, err := kjson.UnmarshalStrict(data, o.Typed)
		if err != nil {
			s.Wrong = append(s.Wrong, fmt.Sprintf("%s: %v", o, err))
		}
		for _, w := range wrong {
			s.Wrong = append(s.Wrong, fmt.Sprintf("%s: %v", o, w))
		}
	}
	return s
}

// of returns the objects of a type.
func of[T any](s *Set) (found []*T) {
	for _, o := range s.Objects {
		if typed, ok := o.Typed.(*T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// Workload is an object that makes pods.
type Workload struct {
	*Object
	Selector *metav1.LabelSelector
	Pod      corev1.PodTemplateSpec
	Replicas *int32
}

// Workloads are all that make pods.
func (s *Set) Workloads() (all []Workload) {
	for _, o := range s.Objects {
		switch w := o.Typed.(type) {
		case *appsv1.Deployment:
			all = append(all, Workload{o, w.Spec.Selector, w.Spec.Template, w.Spec.Replicas})
		case *appsv1.StatefulSet:
			all = append(all, Workload{o, w.Spec.Selector, w.Spec.Template, w.Spec.Replicas})
		case *appsv1.DaemonSet:
			all = append(all, Workload{o, w.Spec.Selector, w.Spec.Template, nil})
		}
	}
	return all
}

// Containers are those of a pod that run side by side, and before them those that make
// things ready.
func (w Workload) Containers() []corev1.Container {
	return append(append([]corev1.Container(nil), w.Pod.Spec.InitContainers...), w.Pod.Spec.Containers...)
}

// Is reports whether the workload's pods are of a program: nats, mesh-agent, mesh-router.
func (w Workload) Is(program string) bool {
	return w.Pod.Labels["app.kubernetes.io/name"] == program
}

// settingsOf are a container's variables with their values, those of ConfigMaps
// included. What a field of the pod gives is its path in angle brackets.
func (s *Set) settingsOf(c corev1.Container) map[string]string {
	values := make(map[string]string)
	for _, from := range c.EnvFrom {
		for _, m := range of[corev1.ConfigMap](s) {
			if from.ConfigMapRef != nil && m.Name == from.ConfigMapRef.Name {
				for k, v := range m.Data {
					values[from.Prefix+k] = v
				}
			}
		}
	}
	for _, e := range c.Env {
		values[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			values[e.Name] = "<" + e.ValueFrom.FieldRef.FieldPath + ">"
		}
		for name, v := range values {
			values[e.Name] = strings.ReplaceAll(values[e.Name], "$("+name+")", v)
		}
	}
	return values
}

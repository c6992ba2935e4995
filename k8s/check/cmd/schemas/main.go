package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/toolmesh/toolmesh/k8s/check"
)

// Where the descriptions come from. The versions are the newest at the time; an older
// cluster may not know a field that these have, and docs/operations/kubernetes.md says
// from which version on ours are known.
var modules = []struct{ module, version, file string }{
	{"k8s.io/kubernetes", "v1.37.1", "api/openapi-spec/swagger.json"},
	{"github.com/kedacore/keda/v2", "v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"},
	{"github.com/prometheus-operator/prometheus-operator", "v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"},
}

const definitions = "#/definitions/"

func main() {
	log.SetFlags(0)
	out := check.Schemas{From: map[string]string{}, Kinds: map[string]*check.Schema{}, Definitions: map[string]*check.Schema{}}
	for _, m := range modules {
		data, err := read(m.module, m.version, m.file)
		if err != nil {
			log.Fatal(err)
		}
		out.From[m.module] = m.version
		if strings.HasSuffix(m.file, ".json") {
			err = swagger(data, &out)
		} else {
			err = definition(data, &out)
		}
		if err != nil {
			log.Fatalf("%s: %v", m.file, err)
		}
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(out); err != nil {
		log.Fatal(err)
	}
}

// read returns a file of a module, by the go command and its cache.
func read(module, version, file string) ([]byte, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module+"@"+version)
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download %s@%s: %w\n%s", module, version, err, said)
	}
	var at struct{ Dir string }
	if err := json.Unmarshal(said, &at); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(at.Dir, filepath.FromSlash(file)))
}

// kindsOfKubernetes are those of its kinds that the manifests may have.
var kindsOfKubernetes = []string{
	"v1/Namespace", "v1/ConfigMap", "v1/Secret", "v1/Service", "v1/ServiceAccount", "v1/PersistentVolumeClaim",
	"apps/v1/Deployment", "apps/v1/DaemonSet", "apps/v1/StatefulSet", "autoscaling/v2/HorizontalPodAutoscaler",
	"networking.k8s.io/v1/NetworkPolicy", "policy/v1/PodDisruptionBudget",
	"rbac.authorization.k8s.io/v1/Role", "rbac.authorization.k8s.io/v1/RoleBinding",
}

func swagger(data []byte, out *check.Schemas) error {
	var all struct {
		Definitions map[string]*check.Schema `json:"definitions"`
	}
	var kinds struct {
		Definitions map[string]struct {
			Of []struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
		} `json:"definitions"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &kinds); err != nil {
		return err
	}
	var keep func(s *check.Schema)
	keep = func(s *check.Schema) {
		if s == nil {
			return
		}
		if name, ok := strings.CutPrefix(s.Ref, definitions); ok {
			s.Ref = name
			if out.Definitions[name] == nil {
				out.Definitions[name] = all.Definitions[name]
				keep(all.Definitions[name])
			}
		}
		for _, p := range s.Properties {
			keep(p)
		}
		keep(s.Items)
		if s.Additional != nil {
			keep(s.Additional.Schema)
		}
	}
	for name, d := range kinds.Definitions {
		for _, of := range d.Of {
			kind := strings.TrimPrefix(of.Group+"/"+of.Version+"/"+of.Kind, "/")
			for _, want := range kindsOfKubernetes {
				if kind == want && len(d.Of) == 1 {
					out.Kinds[kind] = all.Definitions[name]
					keep(all.Definitions[name])
				}
			}
		}
	}
	if len(out.Kinds) != len(kindsOfKubernetes) {
		return fmt.Errorf("%d kinds of %d are described", len(out.Kinds), len(kindsOfKubernetes))
	}
	return nil
}

func definition(data []byte, out *check.Schemas) error {
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					Schema *check.Schema `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return err
	}
	for _, v := range crd.Spec.Versions {
		out.Kinds[crd.Spec.Group+"/"+v.Name+"/"+crd.Spec.Names.Kind] = v.Schema.Schema
	}
	return nil
}

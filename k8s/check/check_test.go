package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

var product = sync.OnceValues(func() (*Facts, error) { return ReadFacts(root) })

func facts(t *testing.T) *Facts {
	t.Helper()
	f, err := product()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func tree(t *testing.T) *Tree {
	t.Helper()
	k, err := ReadTree(root)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func objects(t *testing.T, k *Tree, folder string) *Set {
	t.Helper()
	s, err := k.Objects(folder)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The facts that the checks use exist in their sources.
func TestFacts(t *testing.T) {
	t.Parallel()
	f := facts(t)
	for program, some := range map[string][]string{
		"mesh-agent":  {"MESH_NATS_URL", "NATS_URL", "MESH_HTTP_LISTEN", "MESH_SLOTS", "MESH_DATA_DIR", "MESH_MAX_TIMEOUT", "MESH_LOG_FORMAT", "MESH_AUTH_ISSUER"},
		"mesh-router": {"MESH_NATS_URL", "MESH_HTTP_LISTEN", "MESH_AUTH_ISSUER", "MESH_SESSION_POLICY"},
	} {
		for _, name := range some {
			if !f.Settings[program][name] {
				t.Errorf("%s is not among the %d settings of %s", name, len(f.Settings[program]), program)
			}
		}
	}
	if f.Settings["mesh-router"]["MESH_SLOTS"] || f.Settings["mesh-agent"]["MESH_POOL"] {
		t.Error("settings are known that there are not")
	}
	if !f.Paths["/readyz"] || !f.Paths["/healthz"] || !f.Paths["/metrics"] || !f.Paths["/demand"] || f.Defaults["MESH_DRAIN_TIMEOUT"] != "30s" || f.LameDuck == 0 {
		t.Errorf("paths %v, defaults %v, lame duck %v", f.Paths, f.Defaults, f.LameDuck)
	}
}

func TestOverlays(t *testing.T) {
	t.Parallel()
	k := tree(t)
	overlays, err := k.Kustomizations("overlays")
	if err != nil || len(overlays) < 3 {
		t.Fatalf("there are the overlays %v: %v", overlays, err)
	}
	for _, overlay := range overlays {
		if strings.Count(overlay, "/") > 1 {
			continue // a pool, which is a part of one
		}
		for _, problem := range Problems(objects(t, k, overlay), facts(t)) {
			t.Errorf("%s: %s", overlay, problem)
		}
	}
}

// Images of the production overlay are named by digest.
func TestProductionImages(t *testing.T) {
	t.Parallel()
	for _, problem := range Digests(objects(t, tree(t), "overlays/production")) {
		t.Error(problem)
	}
	if len(Digests(objects(t, tree(t), "overlays/dev"))) == 0 {
		t.Error("the overlay dev has digests, too: this test looks for the wrong thing")
	}
}

func TestContentsOfOverlays(t *testing.T) {
	t.Parallel()
	k := tree(t)
	for overlay, want := range map[string][]string{
		"overlays/dev":        {"StatefulSet/nats", "Deployment/mesh-router", "Deployment/mesh-agent"},
		"overlays/machines":   {"StatefulSet/nats", "Deployment/mesh-router", "DaemonSet/mesh-agent-machine"},
		"overlays/production": {"StatefulSet/nats", "Deployment/mesh-router", "Deployment/mesh-agent-cpu", "Deployment/mesh-agent-gpu"},
	} {
		s := objects(t, k, overlay)
		var got []string
		for _, w := range s.Workloads() {
			got = append(got, w.String())
			n := int32(1)
			if w.Replicas != nil {
				n = *w.Replicas
			}
			if overlay == "overlays/dev" && n != 1 {
				t.Errorf("%s: %s has %d pods, want one of each", overlay, w, n)
			}
			if overlay == "overlays/production" && w.Is("nats") && n != 3 {
				t.Errorf("%s: there are %d NATS servers, want three", overlay, n)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", overlay, got, want)
		}
	}
}

// The files below rendered/ are the renders of the overlays; `make k8s` writes them.
func TestRendered(t *testing.T) {
	t.Parallel()
	k := tree(t)
	for _, overlay := range []string{"dev", "production"} {
		name := filepath.Join(root, "k8s", "rendered", overlay+".yaml")
		want, err := k.Render("overlays/" + overlay)
		if err != nil {
			t.Fatal(err)
		}
		want = append([]byte("# Rendered from k8s/overlays/"+overlay+" by make k8s; change it there.\n"), want...)
		if os.Getenv("K8S_RENDER") != "" {
			if err := os.WriteFile(name, want, 0o644); err != nil { //nolint:gosec // it is public
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != string(want) {
			t.Errorf("%s is not what k8s/overlays/%s renders to, run make k8s (%v)", name, overlay, err)
		}
	}
}

// Whatever components are put together, the result is a good one: each kind of pool, with
// and without the rest.
func TestCombinations(t *testing.T) {
	t.Parallel()
	for _, nats := range []string{"nats", "components/own-nats"} {
		for _, extras := range [][]string{nil, {"monitoring"}, {"tool-egress", "clients"}, {"leafnodes"}, {"gateway"}, {"monitoring", "tool-egress", "clients", "indexes", "leafnodes", "gateway"}} {
			for _, machines := range []string{"", "machines", "machines every-node"} {
				k := tree(t)
				top := combine(t, k, nats, extras, machines)
				keep(t, k, top, strings.Join(append([]string{filepath.Base(nats), machines}, extras...), " "))
				for _, problem := range Problems(objects(t, k, top), facts(t)) {
					t.Errorf("%s, %v, %q: %s", nats, extras, machines, problem)
				}
			}
		}
	}
}

// keep writes a render into the folder K8S_COMBINATIONS, for the tests that have a cluster.
func keep(t *testing.T, k *Tree, top, name string) {
	t.Helper()
	folder := os.Getenv("K8S_COMBINATIONS")
	if folder == "" {
		return
	}
	data, err := k.Render(top)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, " ", "+")+".yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// combine writes a kustomization of all kinds of pools and some components.
func combine(t *testing.T, k *Tree, nats string, extras []string, machines string) (folder string) {
	t.Helper()
	resources, components := []string{"../base"}, []string(nil)
	if nats == "nats" {
		resources = append(resources, "../nats")
	} else {
		components = append(components, "../"+nats)
	}
	if machines != "" {
		resources = append(resources, "../machines")
	}
	if strings.Contains(machines, "every-node") {
		components = append(components, "../components/every-node")
	}
	for _, extra := range extras {
		if (extra == "clients" || extra == "leafnodes") && nats != "nats" {
			continue // whose server is not in the namespace
		}
		components = append(components, "../components/"+extra)
	}
	cpu, err := k.Read("overlays/production/pools/cpu/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	general, _, ok := strings.Cut(cpu, "patches:")
	if !ok {
		t.Fatal("the pool cpu has no patches")
	}
	for _, autoscaler := range []string{"", "autoscale-hpa", "autoscale-keda", "autoscale-hpa scale-to-zero", "autoscale-keda scale-to-zero"} {
		for _, gpu := range []string{"", "gpu"} {
			for _, cache := range []string{"", "shared-environments"} {
				name := strings.NewReplacer("-", "", " ", "").Replace("p" + autoscaler + gpu + cache)
				text := strings.ReplaceAll(strings.ReplaceAll(general, "nameSuffix: -cpu", "nameSuffix: -"+name), "pool: cpu", "pool: "+name)
				var with strings.Builder
				for _, component := range append(strings.Fields(autoscaler), gpu, cache) {
					if component != "" {
						with.WriteString("  - ../../components/" + component + "\n")
					}
				}
				text = strings.ReplaceAll(text, "../../../../pool", "../../pool")
				old := "components:\n  - ../../../../components/autoscale-keda\n"
				if !strings.Contains(text, old) {
					t.Fatalf("the pool cpu has no autoscaler:\n%s", text)
				}
				if with.Len() > 0 {
					text = strings.ReplaceAll(text, old, "components:\n"+with.String())
				} else {
					text = strings.ReplaceAll(text, old, "")
				}
				write(t, k, "combination/"+name+"/kustomization.yaml", text)
				resources = append(resources, name)
			}
		}
	}
	list := func(key string, items []string) string {
		if len(items) == 0 {
			return ""
		}
		return key + ":\n  - " + strings.Join(items, "\n  - ") + "\n"
	}
	file := ""
	if slices.Contains(extras, "indexes") {
		file = "configMapGenerator:\n  - name: mesh-indexes\n    options: {disableNameSuffixHash: true}\n    files: [indexes.toml]\n"
		write(t, k, "combination/indexes.toml", "index = []\n")
	}
	write(t, k, "combination/kustomization.yaml", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: toolmesh\n"+list("resources", resources)+list("components", components)+file)
	return "combination"
}

func write(t *testing.T, k *Tree, name, text string) {
	t.Helper()
	if err := k.Write(name, text); err != nil {
		t.Fatal(err)
	}
}

// The combinations have all components that there are.
func TestComponentsAreCombined(t *testing.T) {
	t.Parallel()
	k := tree(t)
	components, err := k.Kustomizations("components")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("check_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, component := range components {
		if name := filepath.Base(component); !strings.Contains(string(source), `"`+name+`"`) && !strings.Contains(string(source), name+`"`) {
			t.Errorf("no combination has %s", component)
		}
	}
}

// The keys that a person has made become the objects that the manifests name.
func TestCredentials(t *testing.T) {
	t.Parallel()
	k := tree(t)
	for _, name := range []string{"keys/node.nk", "keys/issuer.nk", "keys/admin.nk", "mesh.conf"} {
		write(t, k, "credentials/"+name, "of "+name)
	}
	s := objects(t, k, "credentials")
	var got []string
	for _, o := range s.Objects {
		got = append(got, o.String())
		data, _ := o.Raw["data"].(map[string]any)
		if want := map[string]string{"mesh-node": "node.nk", "mesh-issuer": "issuer.nk", "nats-auth": "mesh.conf"}[o.Name()]; want != "" && (len(data) != 1 || data[want] == nil) {
			t.Errorf("%s holds %v, want %s alone", o, data, want)
		}
	}
	slices.Sort(got)
	if want := []string{"ConfigMap/nats-auth", "Namespace/toolmesh", "Secret/mesh-issuer", "Secret/mesh-node"}; !slices.Equal(got, want) {
		t.Errorf("the credentials make %v, want %v", got, want)
	}
	if len(s.Wrong) > 0 {
		t.Errorf("%v", s.Wrong)
	}
	manual := ""
	for _, component := range []string{"indexes", "leafnodes"} {
		text, err := k.Read("components/" + component + "/kustomization.yaml")
		if err != nil {
			t.Fatal(err)
		}
		manual += text
	}
	for kind, names := range given {
		for _, name := range names {
			if strings.Contains(manual, "create secret generic "+name+" --from-file k8s/credentials/keys/"+keyFiles[name]+"\n") ||
				strings.Contains(manual, "create secret tls "+name+" --cert ") {
				continue
			}
			if !slices.Contains(got, kind+"/"+name) {
				t.Errorf("%s/%s is taken for given, and is not made", kind, name)
			}
		}
	}
	ignored, err := k.Read("credentials/.gitignore")
	if err != nil || !strings.Contains(ignored, "/keys/") || !strings.Contains(ignored, "/mesh.conf") {
		t.Errorf("git would take the keys: %q, %v", ignored, err)
	}
}

// What docs/operations/metrics.md says of 8 slots is what the autoscalers as shipped come
// to, and prometheus-adapter's rule names their metric.
func TestArithmetic(t *testing.T) {
	t.Parallel()
	k := tree(t)
	write(t, k, "a/kustomization.yaml", "resources: [../base, ../nats, ../pool]\ncomponents: [../components/autoscale-hpa]\nnamespace: toolmesh\n")
	write(t, k, "b/kustomization.yaml", "resources: [../base, ../nats, ../pool]\ncomponents: [../components/autoscale-keda]\nnamespace: toolmesh\n")
	for _, folder := range []string{"a", "b"} {
		s := objects(t, k, folder)
		all := autoscalersOf(s)
		if len(all) != 1 || len(all[0].wrong) > 0 {
			t.Fatalf("%s: %+v", folder, all)
		}
		for wanted, nodes := range facts(t).Demand {
			if got := all[0].nodes(wanted); got != nodes {
				t.Errorf("%s: wants %d nodes for %d slots, the page says %d", all[0], got, wanted, nodes)
			}
		}
	}
	rule, err := k.Read("components/autoscale-hpa/adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seriesQuery: toolmesh_pool_wanted_slots\n", "as: toolmesh_pool_wanted_slots\n", "max by (pool) (<<.Series>>{<<.LabelMatchers>>})"} {
		if !strings.Contains(rule, want) {
			t.Errorf("the rule of prometheus-adapter has no %q", want)
		}
	}
}

// NATS's routes lead to the pods of its StatefulSet, and its streams fit on their volume.
func TestNATSConfiguration(t *testing.T) {
	t.Parallel()
	k := tree(t)
	for overlay, servers := range map[string]int{"production": 3, "dev": 1} {
		s := objects(t, k, "overlays/"+overlay)
		conf := ""
		for _, o := range s.Objects {
			if o.Kind() == "ConfigMap" && strings.HasPrefix(o.Name(), "nats-config-") {
				conf = text(o.Raw, "data", "nats.conf")
			}
		}
		routes := strings.Count(conf, "    nats://nats-")
		if servers == 1 && (routes != 0 || strings.Contains(conf, "cluster {")) || servers > 1 && routes != servers {
			t.Errorf("%s: %d routes for %d servers", overlay, routes, servers)
		}
		for i := range routes {
			if !strings.Contains(conf, "nats://nats-"+string(rune('0'+i))+".nats-headless:6222\n") {
				t.Errorf("%s: there is no route to nats-%d", overlay, i)
			}
		}
		for _, want := range []string{"include mesh.conf\n", "server_name: $POD_NAME\n", "pid_file: /run/nats/nats.pid\n", "store_dir: /data\n"} {
			if !strings.Contains(conf, want) {
				t.Errorf("%s: nats.conf has no %q", overlay, want)
			}
		}
		for _, w := range s.Workloads() {
			if !w.Is("nats") {
				continue
			}
			if room, disk := fileStore(t, conf), diskOf(w); room <= 0 || float64(room) > 0.85*float64(disk) {
				t.Errorf("%s: max_file_store is %d bytes of a volume of %d", overlay, room, disk)
			}
		}
	}
}

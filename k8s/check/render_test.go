package check

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Tree is k8s/ in memory, so that tests can add kustomizations.
type Tree struct{ files filesys.FileSystem }

// ReadTree reads all of k8s/ but this module. root is the repository.
func ReadTree(root string) (*Tree, error) {
	t := &Tree{files: filesys.MakeFsInMemory()}
	from := filepath.Join(root, "k8s")
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case "check", "rendered", "images", "keys":
				return fs.SkipDir
			}
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		return t.Write(filepath.ToSlash(below), string(data))
	})
	return t, err
}

// Write puts a file into the tree; name is relative to k8s/.
func (t *Tree) Write(name, text string) error {
	return t.files.WriteFile("/k8s/"+name, []byte(text))
}

// Read returns a file of the tree.
func (t *Tree) Read(name string) (string, error) {
	data, err := t.files.ReadFile("/k8s/" + name)
	return string(data), err
}

// Kustomizations are the folders below one that hold a kustomization themselves.
func (t *Tree) Kustomizations(below string) ([]string, error) {
	var found []string
	err := t.files.Walk("/k8s/"+below, func(name string, _ os.FileInfo, err error) error {
		if folder, ok := strings.CutSuffix(name, "/kustomization.yaml"); ok && err == nil {
			found = append(found, strings.TrimPrefix(folder, "/k8s/"))
		}
		return err
	})
	return found, err
}

// Render is what `kubectl kustomize` prints of a folder of the tree, with the rules
// that it has for files outside of the folder.
func (t *Tree) Render(folder string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // namespaces first, and named objects before those that name them
	built, err := krusty.MakeKustomizer(options).Run(t.files, "/k8s/"+folder)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", folder, err)
	}
	return built.AsYaml()
}

// Objects renders a folder and decodes its objects.
func (t *Tree) Objects(folder string) (*Set, error) {
	text, err := t.Render(folder)
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// copyOf returns a deep copy of a JSON value.
func copyOf(v map[string]any) map[string]any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // it came from YAML
	}
	var into map[string]any
	if err := json.Unmarshal(data, &into); err != nil {
		panic(err)
	}
	return into
}

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"
)

// mesh mcp config puts its entry into a client's settings and leaves the rest of them as it is.
func TestMCPConfig(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "darwin" {
		t.Skip("the paths are those of Linux")
	}
	for client, c := range map[string]struct{ file, before, keeps string }{
		"claude": {".claude.json", `{"numStartups": 3, "mcpServers": {"other": {"command": "x"}}}`, `"other": {"command": "x"}`},
		"cursor": {".cursor/mcp.json", "", ""},
		"vscode": {".config/Code/User/mcp.json", "{\n\t// mine\n\t\"inputs\": [],\n}\n", "// mine"},
		"zed":    {".config/zed/settings.json", "// Zed\n{\n  \"theme\": \"One\", // dark\n  \"context_servers\": {\n    \"mesh\": {\"command\": \"old\"},\n    // more\n  },\n}\n", "// more"},
		"codex":  {".codex/config.toml", "model = \"o\" # mine\n\n[mcp_servers.mesh]\ncommand = \"old\"\n\n[mcp_servers.other]\ncommand = \"x\"\n", "model = \"o\" # mine"},
	} {
		home := t.TempDir()
		path := filepath.Join(home, c.file)
		env := []string{"HOME=" + home}
		mesh := func(args ...string) (int, string, string) {
			var stdout, stderr bytes.Buffer
			status := execute(t.Context(), append([]string{"mcp", "config", client, "--tools=weather.*", "--search"}, args...), env, strings.NewReader("y\n"), &stdout, &stderr)
			return status, stdout.String(), stderr.String()
		}
		status, printed, says := mesh()
		if status != 0 || !strings.Contains(says, path) || !strings.Contains(printed, "--tools=weather.*") {
			t.Fatalf("%s: %d %s %s", client, status, printed, says)
		}
		if c.before != "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(c.before), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if status, _, _ := mesh("--write"); status != 2 { // no terminal to ask on
			t.Errorf("%s: written without being asked: %d", client, status)
		}
		if data, _ := os.ReadFile(path); string(data) != c.before {
			t.Errorf("%s: changed without --yes: %s", client, data)
		}
		status, _, says = mesh("--write", "--yes")
		data, err := os.ReadFile(path)
		if status != 0 || err != nil || !strings.Contains(says, "+ ") || !strings.Contains(string(data), c.keeps) || strings.Contains(string(data), `"old"`) {
			t.Fatalf("%s: %d %v %s\n%s", client, status, err, says, data)
		}
		var settings map[string]any
		if client == "codex" {
			err = toml.Unmarshal(data, &settings)
		} else if plain, bad := hujson.Standardize(bytes.Clone(data)); bad != nil {
			err = bad
		} else {
			err = json.Unmarshal(plain, &settings)
		}
		servers, _ := settings[map[string]string{"vscode": "servers", "zed": "context_servers", "codex": "mcp_servers"}[client]].(map[string]any)
		if servers == nil {
			servers, _ = settings["mcpServers"].(map[string]any)
		}
		entry, _ := servers["mesh"].(map[string]any)
		if args, _ := entry["args"].([]any); err != nil || len(args) != 3 || args[0] != "mcp" || args[1] != "--tools=weather.*" || args[2] != "--search" || !filepath.IsAbs(entry["command"].(string)) {
			t.Errorf("%s: %v, entry %v", client, err, entry)
		}
		if strings.Contains(c.before, "other") && servers["other"] == nil {
			t.Errorf("%s: another entry is gone: %s", client, data)
		}
		if backup, err := os.ReadFile(path + ".bak"); c.before != "" && string(backup) != c.before {
			t.Errorf("%s: the backup has %q, %v", client, backup, err)
		}
		for _, one := range []string{path, path + ".bak"} {
			if about, err := os.Stat(one); c.before != "" && (err != nil || about.Mode().Perm() != 0o640) {
				t.Errorf("%s: mode of %s: %v, %v", client, one, about, err)
			}
		}
		if status, _, says := mesh("--write"); status != 0 || strings.Contains(says, "+ ") {
			t.Errorf("%s: once more: %d %s", client, status, says)
		}
		// A path that is no regular file, or is unreadable, is left alone.
		if err := os.Rename(path, path+".moved"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path+".moved", path); err != nil {
			t.Fatal(err)
		}
		if status, _, says := mesh("--write", "--yes"); status != 2 || !strings.Contains(says, "link") {
			t.Errorf("%s: through a link: %d %s", client, status, says)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("[not {settings"), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, _, says := mesh("--write", "--yes"); status != 2 || !strings.Contains(says, "stays as it is") {
			t.Errorf("%s: unreadable settings: %d %s", client, status, says)
		}
	}
	var stdout, stderr bytes.Buffer
	if status := execute(t.Context(), []string{"mcp", "config", "emacs"}, []string{"HOME=/none"}, strings.NewReader(""), &stdout, &stderr); status != 2 || !strings.Contains(stderr.String(), "claude, cursor") {
		t.Errorf("an unknown client: %d %s", status, stderr.String())
	}
}

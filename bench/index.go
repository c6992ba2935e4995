package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The names of the indexes.
const (
	goIndex = "bill"
	pyIndex = "pybill"
)

// toolOf returns the id of a tool on a side of the mesh.
func toolOf(side, name string) string {
	if side == sideGo {
		return goIndex + "." + name
	}
	return pyIndex + ".bill." + name
}

// pyTools is the module of the Python index.
const pyTools = "ITEM = " + itemText + `

def refund(order: str, amount: int) -> dict:
    """Pay an order's amount back."""
    return {"order": order, "refunded": amount}

def count(to: int):
    """Yield an item as often as asked."""
    for _ in range(to):
        yield ITEM
`

// makeIndex makes a git repository with an index of one module, and returns its URL.
func makeIndex(dir, module, code string, tools ...string) (string, error) {
	names := module + "." + strings.Join(tools, `", "`+module+".")
	for name, text := range map[string]string{
		"tools.toml":   "[index]\ndescription = \"what the benchmark calls\"\ntools = [\"" + names + "\"]\n",
		module + ".py": code,
	} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "-A"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "-q", "-m", "tools"},
	} {
		cmd := exec.Command("git", args...) //nolint:gosec // fixed arguments
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
	}
	return "file://" + dir, nil
}

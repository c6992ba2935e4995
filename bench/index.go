package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The names of tools and indexes.
const (
	goIndex     = "bill"
	pyIndex     = "pybill"
	pythonTools = 100 // in the Python index
)

// toolOf returns the id of a tool on a side of the mesh.
func toolOf(side, name string) string {
	if side == sideGo {
		return goIndex + "." + name
	}
	return pyIndex + ".bill." + name
}

// makeIndex writes a git repository with an index of pythonTools functions, two of which are
// called, and returns its URL.
func makeIndex(dir string) (string, error) {
	dir = filepath.Join(dir, pyIndex)
	var names, code strings.Builder
	fmt.Fprintf(&code, "ITEM = %s\n\n", itemText)
	code.WriteString(`def refund(order: str, amount: int) -> dict:
    """Pay an order's amount back."""
    return {"order": order, "refunded": amount}


def count(to: int):
    """Yield an item as often as asked."""
    for _ in range(to):
        yield ITEM
`)
	names.WriteString(`"bill.refund", "bill.count"`)
	for i := 2; i < pythonTools; i++ {
		fmt.Fprintf(&names, `, "bill.tool_%d"`, i)
		fmt.Fprintf(&code, "\n\ndef tool_%d(text: str, times: int = 1, flag: bool = False) -> str:\n"+
			"    \"\"\"Tool number %d repeats a text.\"\"\"\n    return text * times\n", i, i)
	}
	return "file://" + dir, makeRepository(dir, map[string]string{
		"tools.toml": "[index]\ndescription = \"what the benchmark calls\"\ntools = [" + names.String() + "]\n",
		"bill.py":    code.String(),
	})
}

func makeRepository(dir string, files map[string]string) error {
	for name, text := range files {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
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
			return fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
	}
	return nil
}

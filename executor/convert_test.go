package executor_test

import (
	"encoding/json"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// Code of the tool also runs while its arguments are made; an exception there is the tool's
// error, and its worker stays.
func TestRaisingWhileArgumentsAreMade(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	dir := writeFiles(t, map[string]string{"m.py": `
import dataclasses

@dataclasses.dataclass
class Order:
    kind: str
    def __post_init__(self):
        self.price = {"tea": 3}[self.kind]

def price(order: Order) -> int:
    return order.price

async def price_later(order: Order) -> int:
    return order.price
`})
	ix := open(t, x, specOf(t, x, dir, "m.price", "m.price_later"))
	for _, name := range []string{"m.price", "m.price_later"} {
		_, err := ix.Call(t.Context(), executor.Call{Tool: name, Args: json.RawMessage(`{"order":{"kind":"gold"}}`)}, nil)
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeToolError || e.Type != "KeyError" {
			t.Errorf("%s: %v, want a tool_error of type KeyError", name, err)
		}
		mustCall(t, ix, name, `{"order":{"kind":"tea"}}`, `3`)
	}
	if n := ix.Stats().Restarts; n != 0 {
		t.Errorf("%d workers ended", n)
	}
}

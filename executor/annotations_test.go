package executor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// A schema that JSON cannot express, or that grows with each use of its content,
// costs at most its own tool's description.
func TestBadAnnotationCostsOnlyItsTool(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	source.WriteString(typesPrelude)
	source.WriteString("class D0(TypedDict):\n    a: int\n")
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&source, "class D%d(TypedDict):\n    left: D%d\n    right: D%d\n", i, i-1, i-1)
	}
	source.WriteString(`
class Infinite(enum.Enum):
    A = float("inf")
    B = float("nan")

class Model:
    """Says of itself what is no JSON."""
    @classmethod
    def model_json_schema(cls, **how): return {"type": "object", "default": {float("nan"): object()}}
    @classmethod
    def model_validate_json(cls, data): return cls()

class Raising:
    @classmethod
    def model_json_schema(cls, **how): raise RuntimeError("no")
    @classmethod
    def model_validate_json(cls, data): return cls()

def doubled(x: D40): return 1
def infinite(x: Infinite) -> str: return told(x)
def bounded(x: Annotated[float, Bounds(ge=float("-inf"), le=float("nan"), examples=[object()], description=5)]): return x
def model(x: Model) -> str: return type(x).__name__
def raising(x: Raising): return 1
def returns() -> Model: return 1
def fine(x: int): return x
`)
	ix := openModule(t, sharedExecutor(t), source.String(), "doubled", "infinite", "bounded", "model", "raising", "returns", "fine")
	if len(ix.Unavailable()) > 0 {
		t.Errorf("not served: %+v", ix.Unavailable())
	}
	for _, one := range ix.Tools() {
		if len(one.InputSchema) > 32<<10 || !json.Valid(one.InputSchema) {
			t.Errorf("%s: a schema of %d bytes", one.Name, len(one.InputSchema))
		}
	}
	if got, err := send(t, ix, "t.infinite", `{"x":"A"}`); err != nil || got != `"Infinite.A"` {
		t.Errorf("infinite: %s, %v", got, err)
	}
	if got, err := send(t, ix, "t.model", `{"x":{}}`); err != nil || got != `"Model"` {
		t.Errorf("model: %s, %v", got, err)
	}
	mustCall(t, ix, "t.bounded", `{"x":1.5}`, `1.5`)
	mustCall(t, ix, "t.fine", `{"x":1.0}`, `1`)
	if warnings := toolOf(t, ix, "t.model").Warnings; len(warnings) != 1 {
		t.Errorf("warnings %q", warnings)
	}
}

// modelTools work with either version of pydantic.
const modelTools = `
import datetime, decimal, enum, typing
from typing import *
import pydantic
from pydantic import BaseModel, Field

OLD = pydantic.VERSION.startswith("1.")

class Color(enum.Enum):
    RED = "red"

class Inner(BaseModel):
    n: int = Field(..., ge=1)
    note: Optional[str] = None

class Model(BaseModel):
    name: str = Field(..., alias="theName", description="who", min_length=1)
    inner: List[Inner] = []
    place: Tuple[int, str] = (0, "")
    color: Optional[Color] = None
    day: Optional[datetime.date] = None

def take(m: Model) -> str:
    return f"{type(m).__name__} {m.name} {[type(i).__name__ for i in m.inner]} {m.place} {m.color} {m.day}"

def echo(m: Model) -> Model:
    return m

def optional(m: Optional[Model] = None, *, models: List[Model] = []) -> int:
    return len(models) + (m is not None)

def untyped():
    return {"model": Model(theName="a"), "list": [Inner(n=1)]}

def field(x: int = Field(3, ge=2, description="two or more"), y: str = Field(..., description="needed")) -> str:
    return f"{x!r} {y!r}"

def annotated(x: Annotated[int, Field(ge=3, description="three")]): return x

class Priced(BaseModel):
    total: decimal.Decimal
    n: int = 0

def priced(p: Priced) -> str:
    return f"{p.total!r} {p.n}"

def bounded(x: pydantic.conint(ge=3), y: decimal.Decimal = Field(decimal.Decimal(1), max_digits=3)) -> int:
    return x
`

func TestModelsOfBothVersionsOfPydantic(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := sharedExecutor(t)
	for _, version := range []string{"pydantic<2", "pydantic>=2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := writeFiles(t, map[string]string{"t.py": modelTools, "requirements.txt": version + "\n"})
			lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			ix := open(t, x, executor.Spec{Name: "models", SourceDir: dir, Env: env,
				Tools: []string{"t.take", "t.echo", "t.optional", "t.untyped", "t.field", "t.annotated", "t.priced", "t.bounded"}})
			if len(ix.Unavailable()) > 0 || len(ix.Tools()) != 8 {
				t.Fatalf("not served: %+v", ix.Unavailable())
			}
			good := func(name, args, want string) {
				t.Helper()
				if got, err := send(t, ix, name, args); err != nil || got != want {
					t.Errorf("%s(%s) = %s, %v; want %s", name, args, got, err, want)
				}
			}
			const whole = `{"theName":"a","inner":[{"n":2,"note":null}],"place":[1,"x"],"color":"red","day":"2026-01-31"}`
			good("t.take", `{"m":`+whole+`}`, `"Model a ['Inner'] (1, 'x') Color.RED 2026-01-31"`)
			good("t.take", `{"m":{"theName":"a","color":null}}`, `"Model a [] (0, '') None None"`)
			good("t.echo", `{"m":`+whole+`}`, whole)
			good("t.optional", `{"m":null}`, `0`)
			good("t.optional", `{"m":{"theName":"a"},"models":[{"theName":"b"}]}`, `2`)
			good("t.untyped", `{}`, `{"model":{"theName":"a","inner":[],"place":[0,""],"color":null,"day":null},"list":[{"n":1,"note":null}]}`)
			good("t.field", `{"y":"a"}`, `"3 'a'"`)
			good("t.field", `{"x":5.0,"y":"a"}`, `"5 'a'"`)
			mustRefuse(t, ix, "t.field", `{"x":1,"y":"a"}`, "/x")
			mustRefuse(t, ix, "t.field", `{"x":2}`, "/y")
			mustRefuse(t, ix, "t.annotated", `{"x":2}`, "/x")
			good("t.priced", `{"p":{"total":123456789012345678901234567890.10,"n":9007199254740993.0}}`, `"Decimal('123456789012345678901234567890.10') 9007199254740993"`)
			good("t.bounded", `{"x":3,"y":1.25}`, `3`)
			mustRefuse(t, ix, "t.bounded", `{"x":2}`, "/x")
			mustRefuse(t, ix, "t.bounded", `{"x":3,"y":1.255}`, "/y")
			mustRefuse(t, ix, "t.take", `{"m":{}}`, "/m/theName")
			mustRefuse(t, ix, "t.take", `{"m":{"theName":""}}`, "/m/theName")
			mustRefuse(t, ix, "t.take", `{"m":{"theName":"a","inner":[{"n":0}]}}`, "/m/inner/0/n")
			mustRefuse(t, ix, "t.take", `{"m":{"theName":"a","inner":[{"n":"1"}]}}`, "/m/inner/0/n")
			mustRefuse(t, ix, "t.take", `{"m":{"theName":"a","place":[1]}}`, "/m/place")
			// The model's own words, when the schema has let it through.
			e := mustFail(t, ix, "t.take", `{"m":{"theName":"a","day":"yesterday"}}`, toolmesh.CodeInvalidArguments)
			if list, _ := e.Details["errors"].([]any); len(list) != 1 || list[0].(map[string]any)["pointer"] != "/m/day" {
				t.Errorf("details %v", e.Details)
			}
			if schema := string(toolOf(t, ix, "t.take").InputSchema); !strings.Contains(schema, `"who"`) || !strings.Contains(schema, `"$defs"`) {
				t.Errorf("schema %s", schema)
			}
			if output := toolOf(t, ix, "t.echo").OutputSchema; !strings.Contains(string(output), "theName") {
				t.Errorf("output schema %s", output)
			}
		})
	}
}

// Docstrings and defaults of a tool reach its description, in each style.
func TestDocstringsAndDefaultsAreShown(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
from typing import Annotated
def google(a: int, b: str = "x", *rest: int, **more: int) -> int:
    """Does it.

    More of it.

    Args:
        a: the first
            of all
        b (str, optional): the second
        *rest: the others
        **more: the rest

    Returns:
        what it makes
    """
    return 1
def numpy(a: int, b: Annotated[str, "said here"] = "x"):
    """Does it.

    More of it.

    Parameters
    ----------
    a : int
        the first of all
    b
        not this
    """
def sphinx(a: int, b: str = "x"):
    """Does it.

    More of it.

    :param int a: the first
        of all
    :param b: the second
    :return: nothing
    """
`, "google", "numpy", "sphinx")
	for name, b := range map[string]string{"t.google": "the second", "t.numpy": "said here", "t.sphinx": "the second"} {
		described := toolOf(t, ix, name)
		if described.Description != "Does it.\n\nMore of it." {
			t.Errorf("%s: description %q", name, described.Description)
		}
		var schema struct {
			Properties map[string]struct {
				Description string
				Default     any
			}
			AdditionalProperties any
		}
		if err := json.Unmarshal(described.InputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		if p := schema.Properties; p["a"].Description != "the first of all" || p["b"].Description != b || p["b"].Default != "x" {
			t.Errorf("%s: %+v", name, p)
		}
		if name == "t.google" {
			if diff := cmp.Diff(map[string]any{"type": "integer", "description": "the rest"}, schema.AdditionalProperties); diff != "" || schema.Properties["rest"].Description != "the others" {
				t.Errorf("%s: %s", name, described.InputSchema)
			}
			if string(described.OutputSchema) == "" || described.VarArgs != "rest" {
				t.Errorf("%s: output %s, varargs %v", name, described.OutputSchema, described.VarArgs)
			}
		}
	}
}

// Renders the templates of a chart as Helm does: Go's text/template, with the functions of Helm that the chart uses.
// Arguments: the folder of templates. Standard input: JSON with Values, Chart and Release.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var data map[string]any
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber()
	fail(decoder.Decode(&data))
	set := template.New("").Option("missingkey=error")
	set.Funcs(template.FuncMap{
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"default": func(fallback, value any) any {
			if value == nil || value == "" {
				return fallback
			}
			return value
		},
		"nindent": func(spaces int, text string) string {
			pad := "\n" + strings.Repeat(" ", spaces)
			return pad + strings.ReplaceAll(text, "\n", pad)
		},
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := set.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
	})
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*"))
	fail(err)
	_, err = set.ParseFiles(files...)
	fail(err)
	for _, file := range files {
		if name := filepath.Base(file); !strings.HasPrefix(name, "_") {
			fmt.Println("---")
			fail(set.ExecuteTemplate(os.Stdout, name, data))
			fmt.Println()
		}
	}
}

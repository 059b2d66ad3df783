/*
 * A JSON request as a program in TypeScript, Java or Go, with this server's address. A program needs only the standard
 * library. It sends the body's text unchanged, so that no number loses digits, and prints the response. It reads the key
 * from the environment.
 */

import { address, hasKey } from "./service.js";

const KEY = "GATHERND_API_KEY";
const PIECE = 8192; // characters per literal; Java allows 65535 bytes of UTF-8

/** Return a string literal valid in TypeScript and Java: ASCII, with JSON's escapes. */
const literal = (text) =>
  JSON.stringify(text.replace(/\p{Surrogate}/gu, "\ufffd")).replace(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** Return a string literal for Go, whose escapes are code points instead of surrogates. */
const goLiteral = (text) =>
  JSON.stringify(text.replace(/\p{Surrogate}/gu, "\ufffd")).replace(
    /[^ -~]/gu,
    (point) => `\\U${point.codePointAt(0).toString(16).padStart(8, "0")}`,
  );

const url = (operator) => `${address()}/${operator}`;

/** Return a module for Node.js, Deno, Bun or a web page. */
function typescriptText(operator, body) {
  const key = hasKey() ? `,\n    Authorization: \`Bearer \${process.env.${KEY}}\`` : "";
  return `${hasKey() ? "declare const process: { env: Record<string, string | undefined> };\n\n" : ""}\
const answer = await fetch(${literal(url(operator))}, {
  method: "POST",
  headers: {
    "Content-Type": "application/json"${key},
  },
  body: ${literal(body)},
});
console.log(await answer.text());

export {};
`;
}

/** Return the file Gather.java, for Java 11 and newer. */
function javaText(operator, body) {
  const pieces = body.match(new RegExp(`[^]{1,${PIECE}}`, "gu")) ?? [""];
  const text = pieces.length === 1 ? literal(body) : `String.join("", ${pieces.map(literal).join(", ")})`;
  const key = hasKey() ? `\n                .header("Authorization", "Bearer " + System.getenv("${KEY}"))` : "";
  return `import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public final class Gather {
    public static void main(String[] arguments) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(${literal(url(operator))}))
                .header("Content-Type", "application/json")${key}
                .POST(HttpRequest.BodyPublishers.ofString(${text}))
                .build();
        HttpClient client = HttpClient.newHttpClient();
        System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
`;
}

/** Return the file main.go. */
function goText(operator, body) {
  const key = hasKey() ? `\n\trequest.Header.Set("Authorization", "Bearer "+os.Getenv("${KEY}"))` : "";
  return `package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	body := strings.NewReader(${goLiteral(body)})
	request, err := http.NewRequest("POST", ${goLiteral(url(operator))}, body)
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")${key}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil {
		log.Fatal(err)
	}
}
`;
}

/** The languages by their names on the page. Each function takes a route and the text of a body, and returns a program. */
export const PROGRAMS = [["TypeScript", typescriptText], ["Java", javaText], ["Go", goText]];

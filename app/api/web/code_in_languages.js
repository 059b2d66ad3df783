/*
 * A JSON request as a program in TypeScript, Java or Go, with this server's own address. Each needs nothing but its
 * language, sends the text of the body as it is, so that no number loses digits, and prints the answer. A key is read
 * from the environment and never written out.
 */

import { address, hasKey } from "./service.js";

const KEY = "GATHERND_API_KEY";
const PIECE = 8192; // characters of a text; Java's compiler takes 65535 bytes of UTF-8 in one

/** A literal of all three languages: what they share of JSON's escapes, in ASCII. */
const literal = (text) =>
  JSON.stringify(text.replace(/\p{Surrogate}/gu, "\ufffd")).replace(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** The same for Go, whose escapes are code points and not halves of pairs. */
const goLiteral = (text) =>
  JSON.stringify(text.replace(/\p{Surrogate}/gu, "\ufffd")).replace(
    /[^ -~]/gu,
    (point) => `\\U${point.codePointAt(0).toString(16).padStart(8, "0")}`,
  );

const url = (operator) => `${address()}/${operator}`;

/** A module for Node.js, Deno, Bun or a page. */
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

/** The file Gather.java, for Java 11 and newer. */
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

/** The file main.go. */
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

/** The languages by their names on the page, and the function of each: it takes a route and the text of a body. */
export const PROGRAMS = [["TypeScript", typescriptText], ["Java", javaText], ["Go", goText]];

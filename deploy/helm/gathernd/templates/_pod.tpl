{{- /* The pod of both shapes. deploy/kubernetes says why each field is as it is; a test holds the two equal. */ -}}
{{- define "gathernd.pod" -}}
metadata:
  labels:
    app.kubernetes.io/name: gathernd
    app.kubernetes.io/component: {{ .Values.shape }}
spec:
  serviceAccountName: gathernd
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 60
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          app.kubernetes.io/name: gathernd
  containers:
    - name: gathernd
      image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
      {{- if .Values.image.pullPolicy }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- end }}
      ports:
        - name: http
          containerPort: 8080
          protocol: TCP
      env:
        - name: GATHERND_PORT
          value: "8080"
        - name: GATHERND_THREADS
          valueFrom:
            resourceFieldRef:
              resource: requests.cpu
        - name: GATHERND_DRAIN_DELAY
          value: "10"
        - name: GATHERND_DRAIN_TIMEOUT
          value: "30"
        - name: GATHERND_API_KEYS_FILE
          value: /etc/gathernd/keys/api-keys.txt
        {{- if eq .Values.shape "resident" }}
        - name: GATHERND_MAX_STORE_BYTES
          value: {{ .Values.storage.limit | quote }}
        - name: GATHERND_MAX_UPLOAD_BYTES
          value: {{ .Values.storage.largestUpload | quote }}
        {{- else }}
        - name: GATHERND_MAX_STORE_BYTES
          value: "1"
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
      resources:
        requests:
          cpu: {{ .Values.cpu | quote }}
          memory: {{ .Values.memory }}
        limits:
          memory: {{ .Values.memory }}
      startupProbe:
        httpGet:
          path: /readyz
          port: http
          httpHeaders:
            - {name: Host, value: localhost}
        periodSeconds: 2
        failureThreshold: 900
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
          httpHeaders:
            - {name: Host, value: localhost}
        periodSeconds: 3
        timeoutSeconds: 2
        failureThreshold: 1
      livenessProbe:
        httpGet:
          path: /livez
          port: http
          httpHeaders:
            - {name: Host, value: localhost}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: store
          mountPath: /var/lib/gathernd
        - name: cache
          mountPath: /var/cache/gathernd
        - name: tmp
          mountPath: /tmp
        - name: keys
          mountPath: /etc/gathernd/keys
          readOnly: true
  volumes:
    {{- if eq .Values.shape "stateless" }}
    - name: store
      emptyDir:
        sizeLimit: 16Mi
    {{- end }}
    - name: cache
      emptyDir:
        sizeLimit: 1Gi
    - name: tmp
      emptyDir:
        sizeLimit: 256Mi
    - name: keys
      secret:
        secretName: {{ .Values.keysSecret }}
        defaultMode: 0440
{{- end }}

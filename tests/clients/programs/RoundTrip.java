// What users write with the generated Java client; prints what it got, as JSON.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Base64;
import java.util.List;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.LongStream;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.GatherApi;
import org.openapitools.client.api.InferenceProtocolApi;
import org.openapitools.client.api.ScatterApi;
import org.openapitools.client.model.BackwardAnswer;
import org.openapitools.client.model.Data;
import org.openapitools.client.model.GatherAnswer;
import org.openapitools.client.model.GatherNDBackwardRequest;
import org.openapitools.client.model.GatherNDRequest;
import org.openapitools.client.model.InferAnswer;
import org.openapitools.client.model.InferRequestParameters;
import org.openapitools.client.model.InferInput;
import org.openapitools.client.model.InferOutput;
import org.openapitools.client.model.InferRequest;
import org.openapitools.client.model.LookedUpTensor;
import org.openapitools.client.model.LookupAnswer;
import org.openapitools.client.model.LookupFeature;
import org.openapitools.client.model.LookupRequest;
import org.openapitools.client.model.OutputTensor;
import org.openapitools.client.model.PlaceBody;
import org.openapitools.client.model.Problem;
import org.openapitools.client.model.ProtocolError;
import org.openapitools.client.model.ScatterNDRequest;
import org.openapitools.client.model.Tensor;

public final class RoundTrip {
    private static final ObjectMapper JSON = ApiClient.createDefaultObjectMapper();
    private final GatherApi gathers;
    private final InferenceProtocolApi models;
    private final ScatterApi scatters;

    private RoundTrip(ApiClient client) {
        gathers = new GatherApi(client);
        models = new InferenceProtocolApi(client);
        scatters = new ScatterApi(client);
    }

    private static Tensor indices(List<Long> shape, List<Object> values) {
        return new Tensor().dtype(Tensor.DtypeEnum.INT64).shape(shape).values(values);
    }

    private static Data typed(Data.DtypeEnum dtype, List<Long> shape, List<Object> values) {
        return new Data().dtype(dtype).shape(shape).values(values);
    }

    private static GatherNDRequest request(Data data, Tensor indices) {
        return new GatherNDRequest().data(data).indices(indices);
    }

    private static Map<String, Object> fields(Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int place = 0; place < pairs.length; place += 2) {
            found.put((String) pairs[place], pairs[place + 1]);
        }
        return found;
    }

    private GatherAnswer gather(GatherNDRequest request) throws ApiException {
        return gathers.gathernd(request, null, null, null, null, null, null, null, null, null);
    }

    private Object values(GatherNDRequest request) throws ApiException {
        OutputTensor output = gather(request).getOutput();
        return fields("dtype", output.getDtype(), "shape", output.getShape(), "values", output.getValues());
    }

    /** Integers above 2^53, which not every JSON reader keeps, as base64 in and out. */
    private Object int64() throws ApiException {
        ByteBuffer sent = ByteBuffer.allocate(24).order(ByteOrder.LITTLE_ENDIAN);
        sent.putLong((1L << 53) + 1).putLong(7).putLong(Long.MIN_VALUE);
        Data data = new Data()
                .dtype(Data.DtypeEnum.INT64)
                .shape(List.of(3L))
                .base64(Base64.getEncoder().encodeToString(sent.array()));
        GatherAnswer answer = gather(request(data, indices(List.of(2L, 1L), List.of(2, 0)))
                .outputEncoding(GatherNDRequest.OutputEncodingEnum.BASE64));
        byte[] bytes = Base64.getDecoder().decode(answer.getOutput().getBase64());
        ByteBuffer got = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        return LongStream.generate(got::getLong).limit(bytes.length / 8).mapToObj(Long::toString).toList();
    }

    private Object resident() throws ApiException {
        Data data = new Data().tensor("table");
        GatherAnswer answer = gather(request(data, indices(List.of(1L, 1L), List.of(1))));
        return fields("values", answer.getOutput().getValues(), "data_etag", answer.getDataEtag());
    }

    /** Every field of an error. */
    private Object problem(Data data, Tensor place) throws IOException {
        try {
            throw new AssertionError(gather(request(data, place)));
        } catch (ApiException refusal) {
            Problem found = JSON.readValue(refusal.getResponseBody(), Problem.class);
            PlaceBody first = found.getErrors().get(0);
            return fields(
                    "status", refusal.getCode(),
                    "code", found.getCode(),
                    "clause", found.getRule().getClause(),
                    "total", found.getTotal(),
                    "pointer", first.getPointer(),
                    "position", first.getPosition(),
                    "value", first.getValue(),
                    "axis", first.getAxis(),
                    "size", first.getSize(),
                    "allowed", first.getAllowed());
        }
    }

    private static InferRequest inferRequest(long place) {
        InferInput data = new InferInput()
                .name("data").datatype(InferInput.DatatypeEnum.FP32).shape(List.of(2L, 2L)).data(List.of(0, 1, 2, 3));
        InferInput indices = new InferInput()
                .name("indices").datatype(InferInput.DatatypeEnum.INT64).shape(List.of(1L, 1L)).data(List.of(place));
        return new InferRequest().inputs(List.of(data, indices));
    }

    private Object infer() throws ApiException {
        InferRequest request = inferRequest(1).id("seven").parameters(new InferRequestParameters().batchDims(0L));
        InferAnswer answer = models.modelInfer("gathernd", request);
        InferOutput output = answer.getOutputs().get(0);
        return fields(
                "id", answer.getId(),
                "datatype", output.getDatatype(),
                "shape", output.getShape(),
                "data", output.getData());
    }

    private Object inferError() throws IOException {
        try {
            throw new AssertionError(models.modelInfer("gathernd", inferRequest(5)));
        } catch (ApiException refusal) {
            ProtocolError found = JSON.readValue(refusal.getResponseBody(), ProtocolError.class);
            PlaceBody first = found.getErrors().get(0);
            return fields("code", found.getCode(), "pointer", first.getPointer(), "allowed", first.getAllowed());
        }
    }

    private static Tensor floats(List<Long> shape, List<Object> values) {
        return new Tensor().dtype(Tensor.DtypeEnum.FLOAT32).shape(shape).values(values);
    }

    /** Two updates of one element, added. */
    private Object scatter(Data data) throws ApiException {
        ScatterNDRequest request = new ScatterNDRequest()
                .data(data)
                .indices(indices(List.of(2L, 2L), List.of(0, 1, 0, 1)))
                .updates(floats(List.of(2L), List.of(5, 7)))
                .reduction(ScatterNDRequest.ReductionEnum.ADD);
        return scatters.scatternd(request, null, null, null, null, null, null).getOutput().getValues();
    }

    private Object gradient() throws ApiException {
        GatherNDBackwardRequest request = new GatherNDBackwardRequest()
                .indices(indices(List.of(2L, 1L), List.of(2, 2)))
                .gradOutput(floats(List.of(2L, 2L), List.of(1, 2, 3, 4)))
                .dataShape(List.of(3L, 2L))
                .ldaCoeff(0.5)
                .sparse(true);
        BackwardAnswer answer =
                gathers.gatherndBackward(request, null, null, null, null, null, null, null, null, null);
        return fields("indices", answer.getGradIndices().getValues(), "values", answer.getGradValues().getValues());
    }

    /** Rows of a table beside a bag of them. */
    private Object lookedUp() throws ApiException {
        LookupFeature rows = new LookupFeature().tensor("table").indices(indices(List.of(1L), List.of(1)));
        LookupFeature bag = new LookupFeature()
                .tensor("table")
                .indices(indices(List.of(3L), List.of(0, 1, 1)))
                .offsets(indices(List.of(1L), List.of(0)))
                .pooling(LookupFeature.PoolingEnum.SUM);
        LookupAnswer answer = gathers.lookup(new LookupRequest().features(List.of(rows, bag)), null);
        List<String> etags = answer.getFeatures().stream().map(LookedUpTensor::getDataEtag).toList();
        OutputTensor output = answer.getOutput();
        return fields("shape", output.getShape(), "values", output.getValues(), "data_etags", etags);
    }

    private Object lookupError() throws IOException {
        LookupFeature wrong = new LookupFeature().tensor("table").indices(indices(List.of(2L), List.of(0, 2)));
        try {
            throw new AssertionError(gathers.lookup(new LookupRequest().features(List.of(wrong)), null));
        } catch (ApiException refusal) {
            Problem found = JSON.readValue(refusal.getResponseBody(), Problem.class);
            PlaceBody first = found.getErrors().get(0);
            return fields("code", found.getCode(), "pointer", first.getPointer(), "allowed", first.getAllowed());
        }
    }

    private Object all() throws ApiException, IOException {
        Data square = typed(Data.DtypeEnum.FLOAT32, List.of(2L, 2L), List.of(0, 1, 2, 3));
        Data halves = typed(Data.DtypeEnum.FLOAT16, List.of(4L), List.of(1.5, -0.0999755859375, 65504, "NaN"));
        Data words = typed(Data.DtypeEnum.STRING, List.of(3L), List.of("", "a \"quote\"", "Größe 😀"));
        Data empty = typed(Data.DtypeEnum.FLOAT32, List.of(0L, 2L), List.of());
        return fields(
                "example 1", values(request(square, indices(List.of(2L, 2L), List.of(0, 0, 1, 1)))),
                "float16", values(request(halves, indices(List.of(3L, 1L), List.of(1, 2, 3)))),
                "int64", int64(),
                "string", values(request(words, indices(List.of(2L, 1L), List.of(2, 0)))),
                "batch_dims", values(request(square, indices(List.of(2L, 1L), List.of(1, 0))).batchDims(1L)),
                "resident", resident(),
                "error", problem(square, indices(List.of(2L, 2L), List.of(0, 0, 5, 1))),
                "error on an empty axis", problem(empty, indices(List.of(1L, 1L), List.of(0))),
                "infer", infer(),
                "infer error", inferError(),
                "scatter", scatter(square),
                "gradient", gradient(),
                "lookup", lookedUp(),
                "lookup error", lookupError());
    }

    public static void main(String[] arguments) throws ApiException, IOException {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        // The answer's maps may hold null: an error on an empty axis allows nothing.
        System.out.write(new ObjectMapper().writeValueAsBytes(new RoundTrip(client).all()));
        System.out.flush();
    }
}

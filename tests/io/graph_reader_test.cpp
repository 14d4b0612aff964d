// Each rule of the graph format, broken in turn: name, JSON, a part of the message.
#include <gtest/gtest.h>

#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage::testing {
namespace {

struct GraphCase {
  const char* name;
  std::string json;
  const char* message;
};

// A graph with these buffers and ops.
std::string graph(const std::string& buffers, const std::string& ops = "", const std::string& align = "64") {
  return R"({"format":"stowage-graph","version":1,"name":"g","align":)" + align + R"(,"meta":{},"buffers":[)" +
         buffers + R"(],"ops":[)" + ops + "]}";
}

const std::string kThree =
    R"({"name":"w","bytes":8,"kind":"parameter","resident":true},)"
    R"({"name":"a","bytes":8,"kind":"activation"},{"name":"b","bytes":4,"kind":"output","returned":true})";
const std::string kMakeBoth = R"({"name":"m","target":"t","reads":[0],"creates":[1,2]})";

// An op that makes both buffers, with these members too.
std::string make_with(const std::string& members) {
  return graph(kThree, R"({"name":"m","reads":[0],"creates":[1,2],)" + members + "}");
}

// A second op, with these members, after one that makes both buffers.
std::string then(const std::string& members) { return graph(kThree, kMakeBoth + R"(,{"name":"n",)" + members + "}"); }

std::vector<GraphCase> document_cases() {
  const std::string good = graph(kThree, kMakeBoth);
  return {
      {"Empty", "", "not valid JSON"},
      {"OnlySpace", "  \n", "not valid JSON"},
      {"Array", "[]", "must be a JSON object"},
      {"Number", "7", "must be a JSON object"},
      {"Truncated", good.substr(0, good.size() - 2), "not valid JSON"},
      {"TruncatedInString", good.substr(0, 20), "not valid JSON"},
      {"TrailingText", good + "x", "not valid JSON"},
      {"TrailingDocument", good + good, "text after the JSON document"},
      {"TrailingBrace", good + "}", "text after the JSON document"},
      {"BadUtf8",
       graph(R"({"name":")"
             "\xff"
             R"(","bytes":1,"kind":"input"})"),
       "not valid JSON"},
      {"LoneSurrogate", graph(R"({"name":"\ud800","bytes":1,"kind":"input"})"), "buffer 0: name: must be a string"},
      {"MissingComma", R"({"format":"stowage-graph" "version":1})", "not valid JSON"},
      {"OtherFormat", R"({"format":"stowage-plan","version":1,"align":1,"buffers":[],"ops":[]})",
       "format: is 'stowage-plan', not"},
      {"OtherVersion", R"({"format":"stowage-graph","version":2,"align":1,"buffers":[],"ops":[]})",
       "version: version 2 is not supported"},
      {"VersionString", R"({"format":"stowage-graph","version":"1","align":1,"buffers":[],"ops":[]})",
       "version: must be an integer"},
      {"NoFormat", R"({"version":1,"align":1,"buffers":[],"ops":[]})", "the key 'format' is missing"},
      {"NoVersion", R"({"format":"stowage-graph","align":1,"buffers":[],"ops":[]})", "the key 'version' is missing"},
      {"NoAlign", R"({"format":"stowage-graph","version":1,"buffers":[],"ops":[]})", "the key 'align' is missing"},
      {"NoBuffers", R"({"format":"stowage-graph","version":1,"align":1,"ops":[]})", "the key 'buffers' is missing"},
      {"NoOps", R"({"format":"stowage-graph","version":1,"align":1,"buffers":[]})", "the key 'ops' is missing"},
      {"UnknownKey", R"({"format":"stowage-graph","extra":1})", "unknown key 'extra'"},
      {"RepeatedKey", R"({"format":"stowage-graph","format":"stowage-graph"})", "the key 'format' is there twice"},
      {"RepeatedEscapedKey", R"({"format":"stowage-graph","form\u0061t":"stowage-graph"})",
       "the key 'format' is there twice"},
      {"AlignZero", graph("", "", "0"), "align: must be an integer from 1 to 2^53 - 1"},
      {"AlignFloat", graph("", "", "64.0"), "align: must be an integer"},
      {"AlignTooBig", graph("", "", "9007199254740992"), "align: must be an integer"},
      {"BuffersNoList", R"({"format":"stowage-graph","version":1,"align":1,"buffers":{},"ops":[]})",
       "buffers: must be a list"},
      {"BufferNoObject", graph("7"), "buffer 0: must be an object"},
      {"OpNoObject", graph("", "[]"), "op 0: must be an object"},
      {"MetaNoObject", R"({"format":"stowage-graph","meta":[]})", "meta: must be an object"},
      {"MetaBadJson", R"({"format":"stowage-graph","meta":{"a":tru}})", "meta: is not a valid JSON object"},
      {"MetaBadNumber", R"({"format":"stowage-graph","meta":{"a":01}})", "meta: is not a valid JSON object"},
      {"MetaTooDeep",
       R"({"format":"stowage-graph","meta":{"a":)" + std::string(100, '[') + std::string(100, ']') + "}}",
       "nested deeper"},
  };
}

std::vector<GraphCase> buffer_cases() {
  return {
      {"NoBytes", graph(R"({"name":"x","kind":"input"})"), "buffer 0 'x': the key 'bytes' is missing"},
      {"NoKind", graph(R"({"name":"x","bytes":1})"), "buffer 0 'x': the key 'kind' is missing"},
      {"NegativeBytes", graph(R"({"name":"x","bytes":-1,"kind":"input"})"),
       "buffer 0 'x': bytes: must be an integer from 0 to 2^53 - 1"},
      {"FloatBytes", graph(R"({"name":"x","bytes":1.5,"kind":"input"})"), "bytes: must be an integer"},
      {"ExponentBytes", graph(R"({"name":"x","bytes":1e3,"kind":"input"})"), "bytes: must be an integer"},
      {"StringBytes", graph(R"({"name":"x","bytes":"1","kind":"input"})"), "bytes: must be an integer"},
      {"NullBytes", graph(R"({"name":"x","bytes":null,"kind":"input"})"), "bytes: must be an integer"},
      {"HugeBytes", graph(R"({"name":"x","bytes":9007199254740992,"kind":"input"})"), "bytes: must be an integer"},
      {"BeyondInt64", graph(R"({"name":"x","bytes":99999999999999999999,"kind":"input"})"),
       "bytes: must be an integer"},
      {"LeadingZero", graph(R"({"name":"x","bytes":012,"kind":"input"})"), "bytes: must be an integer"},
      {"UnknownKind", graph(R"({"name":"x","bytes":1,"kind":"weight"})"), "buffer 0 'x': kind: unknown kind 'weight'"},
      {"NumberName", graph(R"({"name":7,"bytes":1,"kind":"input"})"), "buffer 0: name: must be a string"},
      {"ResidentString", graph(R"({"bytes":1,"kind":"input","resident":"yes"})"),
       "buffer 0: resident: must be true or false"},
      {"ReturnedNumber", graph(R"({"bytes":1,"kind":"input","returned":1})"),
       "buffer 0: returned: must be true or false"},
      {"UnknownKey", graph(R"({"name":"x","bytes":1,"kind":"input","size":2})"), "buffer 0 'x': unknown key 'size'"},
      {"RepeatedKey", graph(R"({"name":"x","bytes":1,"bytes":2,"kind":"input"})"),
       "buffer 0 'x': the key 'bytes' is there twice"},
      {"BadMeta", graph(R"({"name":"x","bytes":1,"kind":"input","meta":3})"), "buffer 0 'x': meta: must be an object"},
      {"ReturnedResident", graph(R"({"name":"x","bytes":1,"kind":"input","resident":true,"returned":true})"),
       "buffer 0 'x': returned: a resident buffer cannot be returned"},
      {"NeverCreated", graph(R"({"name":"x","bytes":1,"kind":"input"})"), "buffer 0 'x': no op creates it"},
      {"SumReaches2To53",
       graph(
           R"({"bytes":9007199254740991,"kind":"input","resident":true},{"name":"y","bytes":1,"kind":"input","resident":true})"),
       "buffer 1 'y': bytes: the sum of all sizes, each padded to align, reaches 2^53"},
      {"PaddingReaches2To53",
       graph(
           R"({"bytes":1,"kind":"activation"},{"bytes":1,"kind":"activation"},{"name":"z","bytes":1,"kind":"activation"})",
           "", "4503599627370495"),
       "buffer 2 'z': bytes: the sum of all sizes"},
  };
}

std::vector<GraphCase> op_cases() {
  return {
      {"UnknownKey", then(R"("read":[1])"), "op 1 'n': unknown key 'read'"},
      {"RepeatedKey", then(R"("reads":[1],"reads":[1])"), "op 1 'n': the key 'reads' is there twice"},
      {"ReadsNoList", then(R"("reads":1)"), "op 1 'n': reads: must be a list"},
      {"IdFloat", then(R"("reads":[1.0])"), "op 1 'n': reads[0]: must be an integer"},
      {"IdNegative", then(R"("reads":[0,-1])"), "op 1 'n': reads[1]: must be an integer from 0"},
      {"IdHuge", then(R"("reads":[4294967296])"), "op 1 'n': reads[0]: must be an integer from 0 to 2147483647"},
      {"ReadOutOfRange", then(R"("reads":[0,1,99])"), "op 1 'n': reads[2]: buffer id 99 is out of range (3 buffers)"},
      {"WriteOutOfRange", then(R"("writes":[3])"), "op 1 'n': writes[0]: buffer id 3 is out of range"},
      {"CreateOutOfRange", then(R"("creates":[3])"), "op 1 'n': creates[0]: buffer id 3 is out of range"},
      {"ReadTwice", then(R"("reads":[1,0,1])"), "op 1 'n': reads[2]: buffer 1 is in the list twice"},
      {"WriteTwice", then(R"("writes":[1,1])"), "writes[1]: buffer 1 is in the list twice"},
      {"CreateTwiceInOneList", graph(kThree, R"({"name":"m","creates":[1,1]})"),
       "op 0 'm': creates[1]: buffer 1 is in the list twice"},
      {"CreatedTwice", then(R"("creates":[1])"), "op 1 'n': creates[0]: buffer 1 was already created by op 0"},
      {"CreateResident", then(R"("creates":[0])"), "op 1 'n': creates[0]: buffer 0 is resident"},
      {"ReadsItsOwnCreation", graph(kThree, R"({"name":"m","reads":[1],"creates":[1,2]})"),
       "op 0 'm': reads[0]: buffer 1 is also in creates"},
      {"WritesItsOwnCreation", graph(kThree, R"({"name":"m","writes":[2],"creates":[1,2]})"),
       "op 0 'm': writes[0]: buffer 2 is also in creates"},
      {"ReadBeforeCreation", graph(kThree, R"({"name":"n","reads":[1]},)" + kMakeBoth),
       "op 0 'n': reads[0]: buffer 1 is used before an op creates it"},
      {"WriteBeforeCreation", graph(kThree, R"({"name":"n","writes":[2]},)" + kMakeBoth),
       "op 0 'n': writes[0]: buffer 2 is used before"},
      {"NegativeCost", then(R"("cost_ns":-5)"), "op 1 'n': cost_ns: must be an integer from 0"},
      {"FloatCost", then(R"("cost_ns":0.5)"), "op 1 'n': cost_ns: must be an integer"},
      {"CostSum", then(R"("cost_ns":9007199254740991},{"name":"o","cost_ns":1)"),
       "op 2 'o': cost_ns: the sum over all ops reaches 2^53"},
      {"TicksZero", then(R"("ticks":0)"), "op 1 'n': ticks: must be an integer from 1"},
      {"UnknownTrait", then(R"("traits":["random"])"), "op 1 'n': traits[0]: unknown trait 'random'"},
      {"RepeatedTrait", then(R"("traits":["rng","effect","rng"])"), "op 1 'n': traits[2]: 'rng' is in the list twice"},
      {"AfterItself", then(R"("after":[1])"), "op 1 'n': after[0]: op id 1 is not smaller than its own"},
      {"AfterForward", then(R"("after":[5])"), "op 1 'n': after[0]: op id 5 is not smaller"},
      {"AfterTwice", then(R"("after":[0,0])"), "op 1 'n': after[1]: op 0 is in the list twice"},
  };
}

std::vector<GraphCase> inside_cases() {
  return {
      {"ScratchNoObject", then(R"("scratch":[7])"), "op 1 'n': scratch[0]: must be an object"},
      {"ScratchKey", then(R"("scratch":[{"bytes":1,"from":0,"to":1,"x":1}])"), "op 1 'n': scratch[0]: unknown key 'x'"},
      {"ScratchNoTo", then(R"("scratch":[{"bytes":1,"from":0}])"), "op 1 'n': scratch[0]: the key 'to' is missing"},
      {"ScratchBytes", then(R"("scratch":[{"bytes":-1,"from":0,"to":1}])"),
       "op 1 'n': scratch[0].bytes: must be an integer from 0"},
      {"ScratchEmpty", then(R"("scratch":[{"bytes":1,"from":0,"to":0}])"),
       "op 1 'n': scratch[0]: ticks [0, 0) are not inside [0, 1)"},
      {"ScratchBeyondTicks", then(R"("ticks":2,"scratch":[{"bytes":1,"from":1,"to":3}])"),
       "scratch[0]: ticks [1, 3) are not inside [0, 2)"},
      {"ScratchSum", then(R"("scratch":[{"bytes":9007199254740991,"from":0,"to":1}])"),
       "op 1 'n': scratch[0]: the sum of all sizes"},
      {"BornLength", make_with(R"("born":[0])"), "op 0 'm': born: has 1 entries for 2 created buffers"},
      {"BornEmpty", make_with(R"("born":[])"), "op 0 'm': born: has 0 entries for 2 created buffers"},
      {"BornRange", make_with(R"("ticks":2,"born":[0,2])"), "op 0 'm': born[1]: tick 2 is not inside [0, 2)"},
      {"ReuseNoPair", then(R"("reads":[1],"takeover":[1])"), "op 1 'n': takeover[0]: must be a list"},
      {"ReuseShort", then(R"("reads":[1],"takeover":[[1]])"), "takeover[0]: must be a pair"},
      {"ReuseLong", then(R"("reads":[1],"takeover":[[1,2,0]])"), "takeover[0]: must be a pair"},
      {"ReuseNotRead", make_with(R"("takeover":[[1,2]])"), "op 0 'm': takeover[0]: buffer 1 is not in reads"},
      {"ReuseNotCreated", then(R"("reads":[1],"takeover":[[1,2]])"),
       "op 1 'n': takeover[0]: buffer 2 is not in creates"},
      {"ReuseResident", make_with(R"("takeover":[[0,1]])"), "op 0 'm': takeover[0]: buffer 0 is resident"},
      {"ReuseOutOfRange", then(R"("reads":[1],"takeover":[[1,77]])"),
       "op 1 'n': takeover[0]: buffer id 77 is out of range"},
      {"ReuseLarger",
       graph(kThree + R"(,{"bytes":9,"kind":"temporary"})",
             kMakeBoth + R"(,{"name":"n","reads":[1],"creates":[3],"takeover":[[1,3]]})"),
       "op 1 'n': takeover[0]: buffer 3 is larger than buffer 1"},
  };
}

void expect_all_refused(const std::vector<GraphCase>& cases) {
  for (const GraphCase& broken : cases) {
    SCOPED_TRACE(broken.name);
    try {
      parse_graph(broken.json, "x.graph.json");
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidGraph& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("x.graph.json: ")) << message;
      EXPECT_NE(message.find(broken.message), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(GraphReader, RefusesBrokenDocuments) { expect_all_refused(document_cases()); }
TEST(GraphReader, RefusesBrokenBuffers) { expect_all_refused(buffer_cases()); }
TEST(GraphReader, RefusesBrokenOps) { expect_all_refused(op_cases()); }
TEST(GraphReader, RefusesBrokenInsides) { expect_all_refused(inside_cases()); }

TEST(GraphReader, ReadsEveryField) {
  const Graph g = parse_graph(
      graph(kThree + R"(,{"bytes":8,"kind":"temporary","meta":{"shape":[1, 2]}})",
            R"({"name":"m","target":"aten::mm","reads":[0],"creates":[1],"cost_ns":7,"ticks":3,"born":[2],)"
            R"("scratch":[{"to":2,"bytes":5,"from":1}],"traits":["once","effect","rng"],"meta":{"k":"v"}},)"
            R"({"name":"n","reads":[1],"writes":[0],"creates":[3,2],"takeover":[[1,3],[1,2]],"after":[0]})"),
      "g");
  EXPECT_EQ(g.name, "g");
  EXPECT_EQ(g.align, 64);
  EXPECT_EQ(g.meta, "{}");
  ASSERT_EQ(g.buffers.size(), 4U);
  EXPECT_EQ(g.buffers[0].kind, BufferKind::kParameter);
  EXPECT_TRUE(g.buffers[0].resident);
  EXPECT_TRUE(g.buffers[2].returned);
  EXPECT_EQ(g.buffers[3].meta, R"({"shape":[1, 2]})");
  ASSERT_EQ(g.ops.size(), 2U);
  const Op& m = g.ops[0];
  EXPECT_EQ(m.target, "aten::mm");
  EXPECT_EQ(m.cost_ns, 7);
  EXPECT_EQ(m.ticks, 3);
  EXPECT_EQ(m.born, std::vector<std::int32_t>{2});
  EXPECT_TRUE(m.rng && m.effect && m.once);
  ASSERT_EQ(m.scratch.size(), 1U);
  EXPECT_EQ(m.scratch[0].bytes, 5);
  EXPECT_EQ(m.scratch[0].from, 1);
  EXPECT_EQ(m.scratch[0].to, 2);
  EXPECT_EQ(m.meta, R"({"k":"v"})");
  const Op& n = g.ops[1];
  EXPECT_EQ(n.writes, std::vector<BufferId>{BufferId(0)});
  EXPECT_EQ(n.takeover.size(), 2U);
  EXPECT_EQ(n.after, std::vector<OpId>{OpId(0)});
}

TEST(GraphReader, TakesKeysInAnyOrder) {
  const Graph g = parse_graph(
      R"({"ops":[{"creates":[0],"name":"m"}],"buffers":[{"kind":"input","bytes":1}],"align":1,"version":1,"format":"stowage-graph"})",
      "g");
  EXPECT_EQ(g.ops.size(), 1U);
}

TEST(GraphReader, DigestIsOfTheText) {
  const std::string text = graph("");
  EXPECT_EQ(parse_graph(text, "g").sha256, sha256_hex(text));
  EXPECT_EQ(parse_graph(text + "\n", "g").sha256, sha256_hex(text + "\n"));
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(GraphReader, LongNamesInMessagesAreCutBetweenCharacters) {
  const std::string name = std::string(59, 'a') + "\u20ac\u20ac";
  try {
    parse_graph(graph(R"({"name":")" + name + R"(","bytes":-1,"kind":"input"})"), "g");
    FAIL();
  } catch (const InvalidGraph& error) {
    EXPECT_EQ(error.what(),
              "g: buffer 0 '" + name.substr(0, 59) + "...': bytes: must be an integer from 0 to 2^53 - 1");
  }
}

TEST(GraphReader, NamesInMessagesStayOnOneLine) {
  try {
    parse_graph(graph(R"({"name":"a\nb\u0007","bytes":-1,"kind":"input"})"), "g");
    FAIL();
  } catch (const InvalidGraph& error) {
    EXPECT_STREQ(error.what(), R"(g: buffer 0 'a\x0ab\x07': bytes: must be an integer from 0 to 2^53 - 1)");
  }
}

}  // namespace
}  // namespace stowage::testing

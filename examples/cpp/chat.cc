// Streams the answer to a question over gRPC, with the classes that protoc makes from protos/.
//
//     make && ./chat QUESTION [TEMPERATURE]
//
// The server is at $PAGEWIRE_ADDRESS, else 127.0.0.1:50051.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "pagewire/v1/inference.grpc.pb.h"

namespace v1 = pagewire::v1;

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: chat QUESTION [TEMPERATURE]\n";
    return 2;
  }
  const char* address = std::getenv("PAGEWIRE_ADDRESS");
  auto channel = grpc::CreateChannel(address ? address : "127.0.0.1:50051",
                                     grpc::InsecureChannelCredentials());
  auto stub = v1::InferenceService::NewStub(channel);

  v1::ChatRequest request;
  v1::ChatMessage* message = request.add_messages();
  message->set_role("user");
  message->set_content(argv[1]);
  request.mutable_sampling()->set_temperature(argc > 2 ? std::stof(argv[2]) : 0.0f);
  request.mutable_stop()->set_max_tokens(64);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto answer = stub->Chat(&context, request);
  v1::ChatResponse response;
  while (answer->Read(&response)) {
    if (response.has_delta()) {
      std::cout << response.delta().text() << std::flush;
    } else if (response.has_finished()) {
      const v1::Usage& usage = response.finished().usage();
      std::cout << "\n[" << usage.prompt_tokens() << " tokens in, " << usage.completion_tokens()
                << " out]\n";
    }
  }
  grpc::Status status = answer->Finish();
  if (!status.ok()) {
    // The sentence says what to change; error_details() holds the google.rpc.ErrorInfo.
    std::cerr << "code " << status.error_code() << ": " << status.error_message() << "\n";
    return 1;
  }
}

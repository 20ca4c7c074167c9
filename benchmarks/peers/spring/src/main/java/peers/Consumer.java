package peers;

import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.config.SqsMessageListenerContainerFactory;
import io.awspring.cloud.sqs.listener.errorhandler.ImmediateRetryAsyncErrorHandler;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;

/** Spring Cloud AWS with an asynchronous listener, so that a message that waits takes no thread. */
@SpringBootApplication
public class Consumer {
  private static final Map<String, String> ENVIRONMENT = System.getenv();
  private static final int AT_ONCE = Integer.parseInt(ENVIRONMENT.get("AT_ONCE"));
  private static final long WORK_MILLISECONDS =
      (long) (1000 * Double.parseDouble(ENVIRONMENT.get("WORK_SECONDS")));

  public static void main(String[] arguments) {
    SpringApplication.run(Consumer.class, arguments);
  }

  @Bean
  SqsMessageListenerContainerFactory<Object> defaultSqsListenerContainerFactory(SqsAsyncClient sqs) {
    return SqsMessageListenerContainerFactory.builder()
        .configure(
            options ->
                options
                    .maxConcurrentMessages(AT_ONCE)
                    .maxMessagesPerPoll(10)
                    .pollTimeout(Duration.ofSeconds(20))
                    .messageVisibility(
                        Duration.ofSeconds(Long.parseLong(ENVIRONMENT.get("VISIBILITY_SECONDS")))))
        .errorHandler(new ImmediateRetryAsyncErrorHandler<>())
        .sqsAsyncClient(sqs)
        .build();
  }

  @SqsListener("${QUEUE_URL}")
  CompletableFuture<Void> consume(String body) {
    return CompletableFuture.runAsync(
        Consumer::end, CompletableFuture.delayedExecutor(WORK_MILLISECONDS, TimeUnit.MILLISECONDS));
  }

  private static void end() {
    if (ENVIRONMENT.get("FAILS").equals("1")) {
      try {
        Files.writeString(
            Path.of(ENVIRONMENT.get("RECORD")),
            "failed " + System.currentTimeMillis() / 1000.0 + "\n",
            StandardOpenOption.CREATE,
            StandardOpenOption.APPEND);
      } catch (IOException error) {
        throw new IllegalStateException(error);
      }
      throw new IllegalStateException("the work fails, as it was told to");
    }
  }
}

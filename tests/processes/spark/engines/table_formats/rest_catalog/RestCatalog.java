import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** A REST catalog on the loopback address: {@code java RestCatalog.java PORT DIRECTORY}. */
public class RestCatalog {
  public static void main(String[] given) throws Exception {
    var settings =
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri", "jdbc:sqlite:" + given[1] + "/catalog.db",
            "jdbc.schema-version", "V1",
            "warehouse", given[1]);
    var catalog = CatalogUtil.buildIcebergCatalog("rest", settings, new Configuration());
    var context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
